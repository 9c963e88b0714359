"""Additive attention and the plain dot product: section 3.2.1, against NumPy."""

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

RNG = np.random.default_rng(3)
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
