"""SavedModels that several files of tests ask: written once."""

import pytest

from keras_transformer.export import export_saved_model
from tests.tiny_translator import tiny_translator


@pytest.fixture(scope="session")
def translator():
    return tiny_translator()


@pytest.fixture(scope="session")
def exported(translator, tmp_path_factory):
    return export_saved_model(translator, tmp_path_factory.mktemp("export") / "en_de" / "1")


@pytest.fixture(scope="session")
def loaded(exported):
    """The SavedModel of `translator`, in this process."""
    tensorflow = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    return tensorflow.saved_model.load(exported)


@pytest.fixture(scope="session")
def short_translator():
    """Cuts long sources early, so that a test of hostile ones is not long either."""
    return tiny_translator(max_source_length=24)


@pytest.fixture(scope="session")
def short(short_translator, tmp_path_factory):
    """The directory of the SavedModel of `short_translator`."""
    return export_saved_model(short_translator, tmp_path_factory.mktemp("export") / "short")
