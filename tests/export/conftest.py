"""SavedModels that several files of tests ask: written once."""

import keras
import pytest

from keras_transformer import Translator
from keras_transformer.export import export_saved_model
from tests.export.models import random_translator
from tests.tiny_translator import tiny_model, tiny_tokenizer

if keras.backend.backend() != "tensorflow":  # A SavedModel is written on TensorFlow.
    collect_ignore = [
        f"test_{name}.py"
        for name in (
            "graph_rows",
            "model_in_saved_model",
            "robustness",
            "saved_model",
            "served_shortlist",
            "serving_page",
            "signatures",
            "stored_kernels",
            "warmup",
        )
    ]


@pytest.fixture(scope="session")
def translator():
    """Of two vocabularies; cuts long sources early, so that tests of hostile ones are short."""
    tokenizers = tiny_tokenizer(), tiny_tokenizer(310)
    model = tiny_model(target_vocab_size=310, num_decoder_layers=2)
    return Translator(model, *tokenizers, extra_length=12, max_source_length=40)


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
    import tensorflow as tf

    return tf.saved_model.load(exported)


@pytest.fixture
def signatures_of(monkeypatch):
    """Called with names of signatures: only these are exported, which takes less time."""
    from keras_transformer.translation.signatures import TranslatorFunctions

    def keep(*names):
        inputs = {name: TranslatorFunctions.inputs[name] for name in names}
        monkeypatch.setattr(TranslatorFunctions, "inputs", inputs)

    return keep


@pytest.fixture(scope="session")
def greedy_translator():
    """What the formats without our search are tested with."""
    return random_translator()
