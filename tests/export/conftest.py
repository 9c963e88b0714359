"""SavedModels that several files of tests ask: written once."""

import pytest

from keras_transformer import Translator
from keras_transformer.export import export_saved_model
from tests.export.models import random_translator
from tests.tiny_translator import tiny_translator


@pytest.fixture(scope="session")
def translator():
    """Cuts long sources early, so that a test of hostile ones is not long either."""
    return tiny_translator(max_source_length=40)


@pytest.fixture(scope="session")
def exported(translator, tmp_path_factory):
    """The directory of a SavedModel that works on more than a few texts in chunks."""
    from keras_transformer.translation import signatures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "_MAX_TOKENS", 1_000)
        patch.setattr(Translator, "max_batch_tokens", 1_000)
        patch.setattr(signatures, "_MAX_NUMBERS", 100_000)
        return export_saved_model(translator, tmp_path_factory.mktemp("export") / "en_de" / "1")


@pytest.fixture(scope="session")
def loaded(exported):
    """The SavedModel of `translator`, in this process."""
    tensorflow = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    return tensorflow.saved_model.load(exported)


@pytest.fixture(scope="session")
def greedy_translator():
    """What the formats without our search are tested with."""
    return random_translator()
