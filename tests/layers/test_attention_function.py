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
from tests.closeness import assert_close
from tests.layers import oracle_outputs
from tests.layers.decoding import decode
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array, randomize
from tests.layers.widest_float import WIDEST

RNG = np.random.default_rng(5)


def heads(length, dim):
    return RNG.normal(size=(2, 3, length, dim))


@pytest.mark.parametrize("mask_shape", [None, (2, 5, 7), (1, 5, 7), (2, 1, 7)])
def test_equals_equation_1(mask_shape):
    x = dict(zip(("query", "key", "value"), (heads(5, 4), heads(7, 4), heads(7, 6)), strict=True))
    if mask_shape is not None:
        x["attention_mask"] = RNG.random(mask_shape) < 0.6
    layer = ScaledDotProductAttention(dtype=WIDEST)
    results = layer(**x, return_attention_scores=True)
    if mask_shape is not None:
        x["attention_mask"] = np.broadcast_to(x["attention_mask"], (2, 5, 7))
    expected = oracle_outputs.scaled_dot_product_attention(layer, x)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(array(result), wanted, dtype=WIDEST)


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


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_scale_of_dot_products(scale):
    query, key, value = heads(5, 4), heads(7, 4), heads(7, 6)
    outputs = ScaledDotProductAttention(scale=scale)(query, key, value)
    # The default is 1 / sqrt(4).
    expected = ScaledDotProductAttention()(2 * scale * query, key, value)
    assert_close(array(outputs), array(expected))


@pytest.mark.parametrize("make", [AdditiveAttention, lambda: ScaledDotProductAttention(scale=1.0)])
def test_a_model_with_another_attention_is_saved_and_decodes(make, tmp_path):
    inputs = keras.Input((None, 8))
    layer = MultiHeadAttention(2, 4, attention=make(), name="attention")
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    randomize(model)
    loaded = reloaded(model, tmp_path)
    assert type(loaded.get_layer("attention").attention) is type(layer.attention)
    states = RNG.normal(size=(2, 6, 8)).astype("float32")
    expected = array(model(states))
    np.testing.assert_array_equal(array(loaded(states)), expected)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(clone(states)), expected)
    call = lambda new, cache, _: layer(new, new, use_causal_mask=True, cache=cache)  # noqa: E731
    outputs, _ = decode(call, states, layer.make_cache(batch_size=2), range(1, 7))
    assert_close(outputs, expected)


@pytest.mark.parametrize("options, message", [
    ({"dropout": 0.1}, "not allowed beside `attention`.*Received: dropout="),
    ({"flash_attention": True}, "not allowed beside `attention`.*Received: dropout="),
    ({"position": RelativePosition()}, "adds to dot products.*Received: attention=<Additive"),
])  # fmt: skip
def test_what_does_not_go_with_an_attention_function_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(2, 4, attention=AdditiveAttention(), **options)
