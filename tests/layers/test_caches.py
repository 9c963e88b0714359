"""Caches in one part and in two: positions, masks, and the same numbers as without."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import Transformer
from keras_transformer.decoding import BeamSearch, GreedySearch, MinimumLength
from keras_transformer.layers import Decoder, DecoderBlock
from keras_transformer.layers.caches import FixedCache, GrowingCache
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
RNG = np.random.default_rng(0)


def _visible(mask, length):
    """The mask, `[queries, length]`; None hides nothing."""
    if mask is None:
        return np.ones((1, length), bool)
    return array(mask)[0].astype(bool)


@pytest.mark.parametrize("num_new", [1, 2])
def test_the_mask_of_a_cache_hides_the_future_and_what_is_not_written(num_new):
    new = ops.ones((2, 3, num_new, 4)), ops.ones((2, 3, num_new, 5))
    fixed = FixedCache(ops.zeros((2, 3, 7, 4)), ops.zeros((2, 3, 7, 5)), ops.array(3, "int32"))
    growing = GrowingCache((ops.zeros((2, 3, 3, 4)),), (ops.zeros((2, 3, 3, 5)),))
    for cache, length in ((fixed.extend(*new), 7), (growing.extend(*new), 3 + num_new)):
        last = 3 + np.arange(num_new)[:, None]
        causal = np.arange(length) <= last
        np.testing.assert_array_equal(_visible(cache.mask(num_new, True), length), causal)
        written = np.arange(length)[None] < 3 + num_new
        np.testing.assert_array_equal(_visible(cache.mask(num_new, False), length), written)


@pytest.mark.parametrize("max_length", [None, 5])
def test_hypotheses_of_a_decoders_cache_are_reordered_and_the_source_stays(max_length):
    decoder = Decoder([DecoderBlock(2, 8)], position=None)
    states, source = (RNG.normal(size=(2, length, 4)).astype("float32") for length in (3, 6))
    decoder(states, source)
    cache = decoder.make_cache(source, batch_size=2, max_length=max_length)
    _, cache = decoder(states, cache=cache)
    again = decoder.reorder_cache(cache, ops.array([1, 1], "int32"))
    assert decoder.reorder_cache(cache, None) is cache
    assert again.length is cache.length
    assert again.blocks[0].cross_attention is cache.blocks[0].cross_attention
    before, after = (
        [array(tensor) for tensor in keras.tree.flatten(one.blocks[0].self_attention)]
        for one in (cache, again)
    )
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new, old[[1, 1]] if old.ndim else old)


ON_JAX = pytest.mark.skipif(keras.backend.backend() == "jax", reason="caches have a fixed size")
WINDOW = {"position": "rotary", "sliding_window": 3}
LONG_BEAMS = BeamSearch(3, n_best=3, constraints=[MinimumLength(80)])
LONG_GREEDY = GreedySearch(constraints=[MinimumLength(80)])


@pytest.mark.parametrize("settings, search, max_lengths", [
    (WINDOW, BeamSearch(3, n_best=3), [9, 5]),
    slow(WINDOW, GreedySearch(), [9, 5]),
    slow({"position": "relative", "max_distance": 3}, BeamSearch(3, n_best=3), [9, 5]),
    slow({"position": "rotary"}, BeamSearch(3, n_best=3), [9, 5]),
    slow({"sliding_window": 3}, BeamSearch(3, n_best=3), [9, 5]),
    # Caches in two parts.
    pytest.param({}, LONG_BEAMS, [80, 75], marks=[pytest.mark.slow, ON_JAX]),
    pytest.param({}, LONG_GREEDY, [80, 75], marks=[pytest.mark.slow, ON_JAX]),
], ids=str)  # fmt: skip
def test_a_search_has_the_log_probabilities_of_the_whole_model(settings, search, max_lengths):
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer.from_preset("tiny", vocab_size=12, **layers, **settings)
    randomize(model)
    source = np.array([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
    longest = max_lengths[0]
    state = model.start_decoding(ops.array(source), search.width, longest)
    assert longest < 80 or len(state.cache.blocks[0].self_attention.keys) == 2
    found = search(
        model.decode_step, state, max_lengths, longest, keep_sentences=model.keep_sentences
    )
    tokens, lengths, log_probabilities = map(
        array, (found.tokens, found.lengths, found.log_probabilities)
    )
    for row, rank in np.ndindex(*lengths.shape):
        answer = tokens[row, rank, : int(lengths[row, rank])].astype("int32")
        target = np.concatenate([[2], answer[:-1]])[None]
        logits = array(model({"source": source[row : row + 1], "target": target}))[0]
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total = logits[np.arange(len(answer)), answer].sum()
        assert_close(log_probabilities[row, rank], total, scale=1.0)
