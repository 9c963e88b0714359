"""Translators that several files of tests export."""

import keras
import pytest

from keras_transformer import Translator
from tests.export.models import random_translator
from tests.tiny_translator import tiny_model, tiny_tokenizer

if keras.backend.backend() != "tensorflow":  # A SavedModel is written on TensorFlow.
    collect_ignore = ["test_saved_model.py", "test_served_functions.py"]


@pytest.fixture(scope="session")
def translator():
    """Of two vocabularies; cuts long sources early, so that tests of hostile ones are short."""
    tokenizers = tiny_tokenizer(), tiny_tokenizer(310)
    model = tiny_model(target_vocab_size=310, num_decoder_layers=2)
    return Translator(model, *tokenizers, extra_length=12, max_source_length=40)


@pytest.fixture(scope="session")
def greedy_translator():
    """What the formats without our search are tested with."""
    return random_translator()
