"""Multi-head attention: equals the oracle, caches that change nothing."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.caches import FixedCache
from tests.closeness import assert_close
from tests.layers import oracle_outputs
from tests.layers.decoding import decode
from tests.layers.oracle_parameters import array, randomize
from tests.layers.widest_float import FLOAT64, WIDEST
from tests.oracle import transformer as oracle

RNG = np.random.default_rng(7)


def states(length, width=12, batch=2):
    return RNG.normal(size=(batch, length, width)).astype("float32")


@pytest.mark.parametrize("num_heads, key_dim, value_dim", [(1, 12, None), (3, 4, None), (2, 3, 5)])
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_the_oracle(num_heads, key_dim, value_dim, use_bias):
    layer = MultiHeadAttention(num_heads, key_dim, value_dim, use_bias, dtype=WIDEST)
    query, value, key = states(5), states(7, 9), states(7, 4)
    layer(query, value, key)
    randomize(layer)
    mask = RNG.random((2, 5, 7)) < 0.5
    mask[0, 2] = False
    outputs, scores = layer(query, value, key, attention_mask=mask, return_attention_scores=True)
    x = {"query": query, "value": value, "key": key, "attention_mask": mask}
    want = oracle_outputs.multi_head_attention(layer, x)
    assert_close(array(outputs), want[0], dtype=WIDEST)
    assert_close(array(scores), want[1], dtype=WIDEST)
    again = layer(query, value, key, attention_mask=mask)
    assert_close(array(again), array(outputs), dtype=WIDEST)


@pytest.mark.parametrize("policy", [FLOAT64, "float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("dropout, with_scores", [(0.0, True), (0.3, False), (0.3, True)])
def test_causality_whatever_else_is_asked_for(policy, dropout, with_scores):
    """No output before position 4 depends on position 4 or later."""
    layer = MultiHeadAttention(2, 6, dropout=dropout, seed=1, dtype=policy)
    one = states(7)
    other = np.concatenate([one[:, :4], 10 * states(3)], axis=1)
    padding = (np.arange(7) < np.array([[7], [6]]))[:, None]
    layer(one, one)
    outputs = []
    for inputs in (one, other):
        if dropout:
            layer.attention.dropout_layer.seed_generator.state.assign([1, 0])
        options = {"attention_mask": padding, "use_causal_mask": True, "training": True}
        result = layer(inputs, inputs, return_attention_scores=with_scores, **options)
        if with_scores:
            result, scores = result
            assert not np.triu(array(scores), 1).any()
        outputs.append(array(result))
    np.testing.assert_array_equal(outputs[0][:, :4], outputs[1][:, :4])
    assert np.abs(outputs[0][:, 4:] - outputs[1][:, 4:]).max() > 0.1


@pytest.mark.parametrize("policy, stops, masked", [
    (WIDEST, range(1, 9), False),
    (WIDEST, [3, 4, 8], True),
    (WIDEST, [8], False),
    ("mixed_float16", [3, 4, 8], True),
])  # fmt: skip
@pytest.mark.parametrize("max_length", [None, 8, 11])
def test_cached_equals_uncached(policy, max_length, stops, masked):
    layer = MultiHeadAttention(3, 4, 5, use_bias=True, dtype=policy)
    inputs = states(8)
    layer(inputs, inputs)
    randomize(layer)
    mask = np.tril(RNG.random((2, 8, 8)) < 0.7) if masked else None
    full = layer(inputs, inputs, use_causal_mask=True, attention_mask=mask)

    def call(new, cache, stop):
        seen = None
        if masked:
            seen = np.zeros((2, new.shape[1], max_length or stop), bool)
            seen[:, :, :stop] = mask[:, stop - new.shape[1] : stop, :stop]
        return layer(new, new, cache=cache, use_causal_mask=True, attention_mask=seen)

    cache = layer.make_cache(batch_size=2, max_length=max_length)
    outputs, cache = decode(call, inputs, cache, stops)
    assert_close(outputs, array(full), policy)
    assert isinstance(cache, FixedCache) == (max_length is not None)
    parts = zip(cache.keys, cache.values, strict=True) if max_length is None else [cache[:2]]
    shapes = [(tuple(keys.shape), tuple(values.shape)) for keys, values in parts]
    assert sum(keys[2] for keys, _ in shapes) == (max_length or 8)
    for keys, values in shapes:
        assert (keys, values) == ((2, 3, keys[2], 4), (2, 3, keys[2], 5))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("query_length", [1, 4])
def test_beams_of_a_sentence_share_its_keys(width, query_length):
    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    source, query = states(7), states(query_length, batch=2 * width)
    repeated = np.repeat(source, width, axis=0)
    mask = np.arange(7) < np.array([[7], [4]])
    want = layer(query, repeated, attention_mask=np.repeat(mask, width, axis=0)[:, None])
    cache = layer.make_cache(source)
    outputs = layer.attend_to_cache(query, cache, attention_mask=mask[:, None])
    assert_close(array(outputs), array(want), dtype=WIDEST)


def test_a_cache_of_values_with_keys_of_their_own():
    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    query, value, key = states(2), states(7), states(7, 5)
    want = layer(query, value, key)
    outputs = layer.attend_to_cache(query, layer.make_cache(value, key))
    assert_close(array(outputs), array(want), dtype=WIDEST)


def test_implicit_masks_of_value_and_key_are_honored_and_that_of_the_query_passed_on():
    class Mask(keras.layers.Layer):
        def call(self, inputs):
            return inputs

        def compute_mask(self, inputs, previous_mask=None):
            return ops.not_equal(inputs[..., 0], 0)

    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    query, value, key = states(5), states(7), states(7)
    value[0, 5:, 0] = 0.0
    key[1, :2, 0] = 0.0
    query[0, 1, 0] = 0.0
    mask = (value[..., 0] != 0) & (key[..., 0] != 0)
    masking = Mask(dtype=WIDEST)
    outputs = layer(masking(query), masking(value), masking(key))
    want = layer(query, value, key, attention_mask=mask[:, None])
    np.testing.assert_array_equal(array(outputs), array(want))
    np.testing.assert_array_equal(array(outputs._keras_mask), query[..., 0] != 0)


@pytest.mark.parametrize("width, heads", [(512, 8), (512, 1)])
def test_initial_matrices_are_glorot_of_the_papers_two_dimensional_maps(width, heads):
    layer = MultiHeadAttention(heads, width // heads)
    layer.build((None, None, width), (None, None, width))
    for weight in layer.weights:
        values = array(weight)
        limit = np.sqrt(6 / (width + width))
        np.testing.assert_allclose(values.std(), np.sqrt(2 / (width + width)), rtol=0.01)
        assert limit * 0.999 < np.abs(values).max() <= limit


def test_bad_calls_are_explained():
    layer = MultiHeadAttention(2, 6)
    query = states(2)
    with pytest.raises(ValueError, match="not built"):
        layer.make_cache(batch_size=2)
    layer(query, query)
    cache = layer.make_cache(batch_size=2)
    for value, options, message in (
        (query, {"cache": cache, "return_attention_scores": True}, "scores or a cache, not both"),
        (None, {"cache": cache}, "`value` must be a tensor; `attend_to_cache`"),
        # It would broadcast without a word: a batch of two, two heads and two positions.
        (query, {"attention_mask": np.ones((2, 2), bool)}, "attention_mask of shape"),
        (query, {"attention_mask": np.ones((2, 2, 2, 2), bool)}, "attention_mask of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(query, value, **options)


def test_causal_mask_equals_the_oracle_and_combines_with_others():
    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    query = states(6)
    mask = RNG.random((2, 6, 6)) < 0.7
    outputs = layer(query, query, attention_mask=mask, use_causal_mask=True)
    x = {"query": query, "value": query, "attention_mask": mask & oracle.causal_mask(6)}
    want, _ = oracle_outputs.multi_head_attention(layer, x)
    assert_close(array(outputs), want, dtype=WIDEST)
