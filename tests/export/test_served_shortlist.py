"""A shortlist in a SavedModel: the tokens that NumPy finds, and the Translator's answers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import PAD_ID, SubwordTokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.export import export_saved_model
from keras_transformer.inference import Shortlist, Translator
from keras_transformer.inference.served_functions import token_ids
from tests.export.graph_operations import ALLOWED, operations
from tests.tiny_translator import tiny_model

# A `SubwordTokenizer` is a table in the graph.
OF_TOKENIZER = {"HashTableV2", "LookupTableFindV2", "LookupTableImportV2", "StringSplitV2"}
OF_TOKENIZER |= {"UnsortedSegmentJoin", "StaticRegexReplace", "DenseBincount"}
WORDS = [f"w{number}" for number in range(1400)]
TEXTS = [" ".join(f"w{300 + 71 * n + 5 * k}" for k in range(n % 6)) for n in range(13)]


def _shortlist(num_candidates, vocab_size=1404, num_frequent=20):
    draw = np.random.default_rng(0).integers(4, vocab_size, (1404, num_candidates))
    draw[PAD_ID] = PAD_ID
    return Shortlist(draw.astype("int32"), np.arange(num_frequent, dtype="int32"), vocab_size, 0)


@pytest.mark.parametrize("arguments", [(1,), (40,), (3, 700, 690), (3, 513), (3, 400)])
def test_tokens_are_those_that_numpy_finds(arguments):
    shortlist = _shortlist(*arguments)
    source = np.random.default_rng(1).integers(4, 1404, (5, 9)).astype("int32")
    expected, found = shortlist.token_ids(source), token_ids(shortlist, tf.constant(source))
    if shortlist.vocab_size == 400:
        assert expected is None and found is None
    else:
        np.testing.assert_array_equal(found, expected)
    assert token_ids(None, source) is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("search", [BeamSearch(3), GreedySearch()], ids=str)
def test_answers_are_the_translators(search, dtype, signatures_of, tmp_path):
    signatures_of("serving_default")
    tokenizer = SubwordTokenizer(WORDS)
    model = tiny_model(vocab_size=tokenizer.vocab_size)
    translator = Translator(model, tokenizer, search=search, extra_length=8)
    translator.shortlist = _shortlist(12)
    export_saved_model(translator, tmp_path / "model", dtype=dtype, num_streams=2)
    if dtype == "bfloat16":
        translator = Translator.load(translator.save(tmp_path / "directory"), dtype=dtype)
        translator.shortlist = _shortlist(12)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert operations(tmp_path / "model") <= ALLOWED | OF_TOKENIZER
    # Each text alone, because a shortlist is that of its batch.
    serve = loaded.signatures["serving_default"]
    found = [serve(text=tf.constant([text]))["translation"].numpy()[0].decode() for text in TEXTS]
    assert found == [translator.translate([text])[0] for text in TEXTS]
    assert len(set(found)) > 5
    whole = Translator(model, tokenizer, search=search, extra_length=8).translate(TEXTS)
    assert found != whole
