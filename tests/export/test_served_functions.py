"""The functions of a SavedModel compute what the model does, with stored kernels, in chunks of
rows, among the tokens of a shortlist, and for every kind of model and search."""

import math
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import PAD_ID, SubwordTokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch, MinimumLength, Sampling
from keras_transformer.export import export_saved_model
from keras_transformer.inference import (
    Shortlist,
    Translator,
    served_functions,
    stored_kernels,
)
from keras_transformer.inference.served_functions import starts_of_chunks
from keras_transformer.inference.stored_kernels import (
    StoredKernels,
    StoredTransformer,
    multiply_few_rows,
)
from keras_transformer.models import Ensemble, saved_weights
from keras_transformer.models.ensemble import copy_of
from keras_transformer.models.saved_weights import load_saved_model_weights
from keras_transformer.translation.signatures import TranslatorFunctions, in_chunks
from tests.closeness import assert_close
from tests.export.graph_operations import ALLOWED, operations
from tests.layers.oracle_parameters import array, randomize
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator
from tests.training.uncompiled import uncompiled

GENERATOR = np.random.default_rng(0)
SOURCE, TARGET = GENERATOR.integers(4, 12, (2, 3, 2)).astype("int32")
UNEQUAL = {"use_bias": True, "key_dim": 4, "value_dim": 3, "norm": "pre"}
RELATIVE = {"target_vocab_size": 15, "position": "relative"}
# A `SubwordTokenizer` is a table in the graph.
OF_TOKENIZER = {"HashTableV2", "LookupTableFindV2", "LookupTableImportV2", "StringSplitV2"}
OF_TOKENIZER |= {"UnsortedSegmentJoin", "StaticRegexReplace", "DenseBincount"}
WORDS = [f"w{number}" for number in range(1400)]
TEXTS = [sentence(1 + seed % 12, seed) for seed in range(24)]


def set_amx(monkeypatch, has_amx):
    for module in (stored_kernels, saved_weights):
        monkeypatch.setattr(module, "has_amx", lambda: has_amx)


def quantize_some(model):
    """Quantizes maps whose neighbors stay as they are."""
    model.encoder.blocks[0].attention.query_dense.quantize("float8")
    model.decoder.blocks[0].self_attention.key_dense.quantize("int8")
    model.decoder.blocks[0].cross_attention.query_dense.quantize("int8")
    model.decoder.blocks[0].feed_forward.outer_dense.quantize("float8")


@pytest.mark.parametrize("amx, num_parts, dtype, settings, change", [
    (True, 2, "bfloat16", UNEQUAL, None),
    (True, 1, "bfloat16", {}, quantize_some),
    pytest.param(False, 3, "bfloat16", RELATIVE, None, marks=pytest.mark.slow),
    pytest.param(False, 1, "float32", UNEQUAL, None, marks=pytest.mark.slow),
])  # fmt: skip
def test_logits_are_those_of_the_model(amx, num_parts, dtype, settings, change, monkeypatch):
    set_amx(monkeypatch, amx)
    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 10)
    monkeypatch.setattr(saved_weights, "_LARGE", 100)
    model = copy_of(tiny_model(1, **settings), dtype)
    randomize(model)
    if change is not None:
        change(model)
    stored = copy_of(model, model_class=StoredTransformer)
    kernels = StoredKernels(stored, num_parts)
    num_matrices = len(kernels.variables) - len(kernels._weights)
    assert bool(num_matrices) == (dtype == "bfloat16")
    # Only these are read: neither the kernels in the groups, nor variables that are not stored.
    stored_ids = {id(variable) for variable in kernels.variables}
    for weight in stored.weights:
        if id(weight.value) not in stored_ids:
            weight.assign(np.zeros(weight.shape))

    def logits(transformer):
        inputs = {"source": tf.constant(SOURCE), "target": tf.constant(TARGET)}
        state, found = transformer.start_decoding(inputs["source"], width=1), []
        for position in range(TARGET.shape[1]):
            step, state = transformer.decode_step(inputs["target"][:, position], None, state)
            found.append(step)
        return transformer(inputs, training=False), tf.stack(found, axis=1)

    @tf.function
    def stored_logits():
        with kernels.read_once():
            return logits(stored)

    inputs = {"source": SOURCE, "target": TARGET}
    expected = array(model(inputs, training=False))
    assert np.std(expected) > 0.3
    for found in stored_logits():
        assert_close(array(found), expected, dtype)


def test_functions_that_are_traced_at_the_same_time_wait_for_each_other(monkeypatch):
    """Both read the same tensors of the weights, which are of one graph."""
    set_amx(monkeypatch, True)
    model = copy_of(tiny_model(1), "bfloat16")
    stored = copy_of(model, model_class=StoredTransformer)
    kernels, others = StoredKernels(stored), []
    inputs = {"source": tf.constant(SOURCE), "target": tf.constant(TARGET)}

    def logits(begins_another):
        @tf.function
        def function():
            with kernels.read_once():
                if begins_another:
                    others.append(threading.Thread(target=logits, args=(False,)))
                    others[0].start()
                    others[0].join(0.5)
                return stored(inputs, training=False)

        found.append(array(function()))

    found = []
    logits(True)
    others[0].join()
    assert len(found) == 2
    for one in found:
        assert_close(one, array(model(inputs, training=False)), "bfloat16")


@pytest.mark.parametrize("num_rows, num_parts, amx, dtype", [
    (1, 1, True, "float32"), (4, 2, False, "bfloat16"), (4, 100, True, "bfloat16"),
    (9, 3, False, "float32"),
])  # fmt: skip
def test_parts_of_a_product(num_rows, num_parts, amx, dtype, monkeypatch):
    set_amx(monkeypatch, amx)
    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 6)
    # Small integers, whose products and sums are exact in bfloat16.
    rows = GENERATOR.integers(-3, 4, (num_rows, 6)).astype("float32")
    transpose = GENERATOR.integers(-3, 4, (7, 6)).astype("float32")
    found = multiply_few_rows(tf.cast(rows, dtype), tf.cast(transpose, dtype), num_parts)
    np.testing.assert_array_equal(tf.cast(found, "float32"), rows @ transpose.T)


@pytest.mark.parametrize("has_amx", [False, True])
def test_another_processor_may_have_exported_the_weights(tmp_path, monkeypatch, has_amx):
    model, holder = copy_of(tiny_model(1), "bfloat16"), tf.Module()
    set_amx(monkeypatch, not has_amx)
    holder.model_variables = StoredKernels(copy_of(model, model_class=StoredTransformer)).variables
    set_amx(monkeypatch, has_amx)
    tf.train.Checkpoint(holder).write(str(tmp_path / "variables"))
    loaded = copy_of(tiny_model(2), "bfloat16")
    load_saved_model_weights(loaded, tmp_path / "variables")
    for one, other in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other))


@pytest.mark.parametrize("num_rows, sizes", [(10, [4, 4, 2]), (0, [])])
def test_rows_are_cut_into_chunks(num_rows, sizes):
    def function(start, end):
        rows = tf.range(start, end)
        return tf.stack([rows, tf.fill(tf.shape(rows), end - start)], axis=1)

    chunks = in_chunks(function, tf.constant(num_rows), 4, tf.zeros([0, 2], tf.int32))
    rows, sizes_found = chunks.numpy().T
    assert rows.tolist() == list(range(num_rows))
    assert sizes_found.tolist() == np.repeat(sizes, sizes).tolist()


@pytest.mark.parametrize("lengths, starts", [
    ([9, 9, 9, 9], [0, 2, 4]),  # even shares of a small request
    ([400, 30, 20, 10, 10, 10, 10, 10, 10, 10], [0, 1, 4, 9, 10]),  # at most 100 positions
])  # fmt: skip
def test_long_rows_come_in_small_chunks(lengths, starts):
    found = starts_of_chunks(tf.constant(lengths), max_positions=100, max_rows=64, num_streams=2)
    assert found.numpy().tolist() == starts


@pytest.mark.slow
def test_a_long_text_does_not_cut_the_chunks_of_short_ones(monkeypatch):
    translator = tiny_translator(search=GreedySearch(), extra_length=5)
    monkeypatch.setattr(Translator, "max_batch_tokens", 400)
    starts = []

    def spy(*arguments):
        starts.append(starts_of_chunks(*arguments))
        return starts[-1]

    monkeypatch.setattr(served_functions, "starts_of_chunks", spy)
    functions = TranslatorFunctions(translator, translator.search, num_streams=1)
    texts = [sentence(4, seed) for seed in range(20)]
    with uncompiled():
        short = functions.module.serving_default(tf.constant(texts))["translation"]
        both = functions.module.serving_default(tf.constant([*texts, sentence(100, 1)]))
    sizes = [np.diff(found).tolist() for found in starts]
    assert sizes[1] == [1, *sizes[0]]
    assert both["translation"].numpy().tolist()[:20] == short.numpy().tolist()


def random_shortlist(num_candidates, vocab_size=1404, num_frequent=20):
    draw = np.random.default_rng(0).integers(4, vocab_size, (1404, num_candidates))
    draw[PAD_ID] = PAD_ID
    return Shortlist(draw.astype("int32"), np.arange(num_frequent, dtype="int32"), vocab_size, 0)


@pytest.mark.parametrize("arguments", [(1,), (40,), (3, 700, 690)])
def test_tokens_of_a_shortlist_are_those_that_numpy_finds(arguments):
    shortlist = random_shortlist(*arguments)
    source = np.random.default_rng(1).integers(4, 1404, (5, 9)).astype("int32")
    found = shortlist.token_ids_in_graph(tf.constant(source))
    np.testing.assert_array_equal(found, shortlist.token_ids(source))
    assert random_shortlist(3, 400).token_ids_in_graph(source) is None


def answers(directory, texts):
    serve = tf.saved_model.load(str(directory)).signatures["serving_default"]
    return [text.decode() for text in serve(text=tf.constant(texts))["translation"].numpy()]


@pytest.mark.slow
def test_answers_with_a_shortlist_are_the_translators(signatures_of, tmp_path):
    signatures_of("serving_default")
    tokenizer = SubwordTokenizer(WORDS)
    model = tiny_model(vocab_size=tokenizer.vocab_size)
    translator = Translator(model, tokenizer, search=BeamSearch(3), extra_length=8)
    texts = [" ".join(f"w{300 + 71 * n + 5 * k}" for k in range(n % 6)) for n in range(13)]
    whole = translator.translate(texts)
    translator.shortlist = random_shortlist(12)
    export_saved_model(translator, tmp_path / "model")
    assert operations(tmp_path / "model") <= ALLOWED | OF_TOKENIZER
    found = answers(tmp_path / "model", texts)
    assert found == translator.translate(texts) != whole


KINDS = {
    "ensemble": lambda: Translator(
        Ensemble([tiny_model(1), tiny_model(2, num_decoder_layers=2)]), tiny_tokenizer()
    ),
    "learned positions": lambda: Translator(
        tiny_model(position="learned", max_length=12), tiny_tokenizer(), search=GreedySearch()
    ),
    "samples": lambda: tiny_translator(search=Sampling(seed=2**31 - 1)),
    "constraints": lambda: tiny_translator(search=BeamSearch(2, constraints=[MinimumLength(9)])),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_as_the_translator(kind, signatures_of, tmp_path, monkeypatch):
    signatures_of("serving_default")
    translator = KINDS[kind]()
    num_streams = 1 if kind == "samples" else 3
    if num_streams > 1:
        monkeypatch.setattr(Translator, "max_batch_tokens", 400)  # Several chunks.
    export_saved_model(translator, tmp_path / "m", num_streams=num_streams)
    expected = translator.translate(TEXTS)
    assert answers(tmp_path / "m", TEXTS) == expected


@pytest.mark.slow
def test_bfloat16_halves_the_weights(signatures_of, tmp_path):
    signatures_of("score", "limits")
    translator = tiny_translator()
    loaded = tf.saved_model.load(export_saved_model(translator, tmp_path / "m", dtype="bfloat16"))
    assert {v.dtype for v in loaded.model_variables} == {tf.bfloat16}
    numbers = sum(math.prod(variable.shape) for variable in loaded.model_variables)
    assert numbers == translator.model.count_params()
    pairs = {"text": tf.constant(TEXTS), "translation": tf.constant(TEXTS)}
    found = loaded.signatures["score"](**pairs)["log_probability"]
    expected = [score.log_probability for score in translator.score(TEXTS, TEXTS)]
    np.testing.assert_allclose(found, expected, rtol=0.05)
    assert translator.model.dtype_policy.name == "float32"
