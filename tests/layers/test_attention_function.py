"""Attention functions: equation (1) and additive scores, safe where every key is masked."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    AdditiveAttention,
    MultiHeadAttention,
    RelativePosition,
    ScaledDotProductAttention,
)
from tests.layers.oracle_parameters import array, randomize
from tests.layers.widest_float import FLOAT64, WIDEST, within
from tests.oracle import transformer as oracle

RNG = np.random.default_rng(5)
POLICIES = [FLOAT64, "float32", "mixed_bfloat16", "mixed_float16", "bfloat16"]


def heads(length, dim, scale=1.0):
    return RNG.normal(size=(2, 3, length, dim)) * scale


@pytest.mark.parametrize("mask_shape", [None, (2, 5, 7), (1, 5, 7), (2, 1, 7)])
def test_equals_equation_1(mask_shape):
    query, key, value = heads(5, 4), heads(7, 4), heads(7, 6)
    mask = None if mask_shape is None else RNG.random(mask_shape) < 0.6
    layer = ScaledDotProductAttention(dtype=WIDEST)
    outputs, scores = layer(query, key, value, attention_mask=mask, return_attention_scores=True)
    full = None if mask is None else np.broadcast_to(mask, (2, 5, 7))
    for row in range(2):
        for head in range(3):
            expected = oracle.attention(
                query[row, head],
                key[row, head],
                value[row, head],
                None if full is None else full[row],
            )
            np.testing.assert_allclose(array(outputs)[row, head], expected[0], atol=within(1e-13))
            np.testing.assert_allclose(array(scores)[row, head], expected[1], atol=within(1e-13))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("key_length", [1, 4])
def test_a_dead_row_is_exactly_zero_and_others_are_untouched(policy, key_length):
    query, key, value = heads(3, 4, 30.0), heads(key_length, 4, 30.0), heads(key_length, 4, 30.0)
    mask = np.ones((2, 3, key_length), bool)
    mask[0, 1] = False
    layer = ScaledDotProductAttention(dtype=policy)
    outputs, scores = layer(
        *(value.astype("float32") for value in (query, key, value)),
        attention_mask=mask,
        return_attention_scores=True,
    )
    outputs, scores = array(outputs), array(scores)
    assert np.isfinite(outputs).all() and np.isfinite(scores).all()
    assert not outputs[0, :, 1].any() and not scores[0, :, 1].any()
    np.testing.assert_allclose(scores.sum(-1)[1], 1.0, atol=2e-2)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_softmax_is_computed_in_float32(policy):
    """256 equal scores: in float16 or bfloat16 the sum of the softmax would be off."""
    query, key = np.zeros((1, 1, 1, 4), "float32"), np.zeros((1, 1, 3000, 4), "float32")
    value = np.ones((1, 1, 3000, 1), "float32")
    outputs = ScaledDotProductAttention(dtype=policy)(query, key, value)
    np.testing.assert_allclose(array(outputs), 1.0, atol=1e-2)


def test_masked_keys_get_no_weight_even_with_huge_scores():
    query = np.full((1, 1, 1, 4), 100.0, "float32")
    key = np.stack([np.full(4, 1e4), np.zeros(4)])[None, None].astype("float32")
    value = np.array([[[[7.0], [3.0]]]], "float32")
    outputs = ScaledDotProductAttention()(
        query, key, value, attention_mask=np.array([[[False, True]]])
    )
    assert array(outputs).item() == 3.0


def test_dropout_falls_on_the_weights_only_while_training():
    layer = ScaledDotProductAttention(dropout=0.5, seed=1)
    query, key = heads(5, 4).astype("float32"), heads(400, 4).astype("float32")
    value = np.ones((2, 3, 400, 1), "float32")
    _, scores = layer(query, key, value, return_attention_scores=True, training=True)
    assert 0.45 < (array(scores) == 0).mean() < 0.55
    _, scores = layer(query, key, value, return_attention_scores=True)
    assert (array(scores) > 0).all()


def test_declared_shapes():
    query, key = keras.KerasTensor((2, 3, 5, 4)), keras.KerasTensor((2, 3, 7, 4))
    outputs, scores = ScaledDotProductAttention()(query, key, key, return_attention_scores=True)
    assert outputs.shape == (2, 3, 5, 4) and scores.shape == (2, 3, 5, 7)


QUERY, KEY, VALUE = (RNG.normal(size=(2, 3, n, d)) for n, d in ((5, 4), (7, 4), (7, 6)))
MASK = RNG.random((2, 5, 7)) < 0.6


def softmax(scores):
    scores = np.where(MASK[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_the_scale_of_dot_products(scale):
    layer = ScaledDotProductAttention(scale=scale)
    weights = softmax((scale or 0.5) * QUERY @ np.swapaxes(KEY, -1, -2))
    outputs = layer(QUERY, KEY, VALUE, attention_mask=MASK)
    np.testing.assert_allclose(array(outputs), weights @ VALUE, atol=1e-5)


@pytest.mark.parametrize("make", [AdditiveAttention, lambda: ScaledDotProductAttention(scale=1.0)])
def test_a_model_with_another_attention_is_saved_and_decodes(make, tmp_path):
    inputs = keras.Input((None, 8))
    layer = MultiHeadAttention(2, 4, attention=make(), name="attention")
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    randomize(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("attention").attention) is type(layer.attention)
    states = RNG.normal(size=(2, 6, 8)).astype("float32")
    expected = array(model(states))
    np.testing.assert_array_equal(array(loaded(states)), expected)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(clone(states)), expected)
    cache, outputs = layer.make_cache(batch_size=2), []
    for i in range(6):
        part = states[:, i : i + 1]
        found, cache = layer(part, part, use_causal_mask=True, cache=cache)
        outputs.append(array(found))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


@pytest.mark.parametrize("own", [{"dropout": 0.1}, {"flash_attention": True}])
def test_what_the_function_has_itself_is_refused(own):
    with pytest.raises(ValueError, match="not allowed beside `attention`.*Received: dropout="):
        MultiHeadAttention(2, 4, attention=AdditiveAttention(), **own)


def test_relative_positions_are_refused():
    with pytest.raises(ValueError, match="adds to dot products.*Received: attention=<Additive"):
        MultiHeadAttention(2, 4, attention=AdditiveAttention(), position=RelativePosition())
