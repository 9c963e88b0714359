"""Dropout keeps the expectation and follows its seed; layer normalization is that of Keras."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Dropout, LayerNormalization, backend_operations
from keras_transformer.layers.tensors import at_least_float32
from tests.closeness import assert_close
from tests.layers.harness import WIDEST
from tests.layers.oracle_parameters import array
from tests.precision.gradients import value_and_gradients


def test_expectation_is_exact():
    outputs = array(Dropout(0.3, seed=1)(np.ones((2000, 1000), "float32"), training=True))
    assert abs(outputs.mean() - 1) < 5 * np.sqrt(0.3 / 0.7 / 2e6)


@pytest.mark.parametrize("rate", [0.0, 1e-7, 0.9999999])
def test_extreme_rates(rate):
    outputs = array(Dropout(rate, seed=1)(np.ones((10, 10), "float32"), training=True))
    assert np.isfinite(outputs).all()
    # The rounding is that of the scale, 1 / (1 - 1e-7).
    assert_close(outputs, 1.0 if rate < 0.5 else 0.0, sum_length=1)


def test_calls_draw_new_masks_and_a_seed_repeats_them():
    def masks(seed):
        layer = Dropout(0.5, seed=seed)
        return [array(layer(np.ones((8, 8), "float32"), training=True)) for _ in range(2)]

    first, second = masks(3)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(masks(3), [first, second])
    for mask in (first, second):
        assert not np.array_equal(masks(4)[0], mask)


def test_neighbors_are_dropped_independently():
    """One random word serves two inputs: the halves must not be correlated."""
    kept = array(Dropout(0.5, seed=1)(np.ones((1000, 1000), "float32"), training=True)) != 0
    for shift in (1, 2, 3):
        assert abs(np.mean(kept[:, shift:] == kept[:, :-shift]) - 0.5) < 0.003


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the random words of JAX")
def test_each_bit_is_random_by_itself_and_from_seed_to_seed():
    shape, deviation = (40, 1000), 0.5 / np.sqrt(40_000)
    seeds = np.array([[3, 0], [3, 1]], "uint32")
    words = [
        keras.ops.convert_to_numpy(backend_operations._random_words(shape, seed)) for seed in seeds
    ]
    bits = [(word[..., None] >> np.arange(32, dtype="uint32")) & 1 for word in words]
    pairs = [bits[0][:, :-1] ^ bits[0][:, 1:], bits[0][:-1] ^ bits[0][1:], bits[0] ^ bits[1]]
    pairs.append(bits[0] ^ np.roll(bits[0], 1, axis=-1))
    for shares in (found.mean((0, 1)) for found in (*bits, *pairs)):
        assert abs(shares - 0.5).max() < 5 * deviation
    assert len(np.unique(words[0])) == words[0].size  # Encryption maps no two indices to one word.


RNG = np.random.default_rng(7)


def weighted_outputs(layer, inputs, upstream, **kwargs):
    """Returns the outputs, and the gradients of their weighted sum: of inputs and both weights."""
    inputs = keras.Variable(inputs, dtype=layer.compute_dtype)
    wide = at_least_float32(layer.compute_dtype)
    upstream = keras.ops.cast(upstream, wide)

    def total():
        return keras.ops.sum(keras.ops.cast(layer(inputs.value, **kwargs), wide) * upstream)

    _, gradients = value_and_gradients(total, [inputs, layer.gamma, layer.beta])
    return [array(layer(inputs.value, **kwargs)), *gradients]


@pytest.mark.parametrize("dtype, rounding, shape, training", [
    ("float64", WIDEST, (3, 5, 12), True), ("float64", WIDEST, (3, 5, 12), False),
    ("float64", WIDEST, (0, 5, 12), True), ("float32", "float32", (2, 3, 4, 5), True),
    ("mixed_bfloat16", "bfloat16", (7, 12), True), ("mixed_bfloat16", "bfloat16", (7, 12), False),
])  # fmt: skip
def test_gradients_are_those_of_keras(dtype, rounding, shape, training):
    ours = LayerNormalization(dtype=dtype)
    keras_layer = keras.layers.LayerNormalization(epsilon=1e-6, dtype=dtype)
    width = shape[-1]
    weights = [RNG.normal(size=width), RNG.normal(size=width)]
    for layer in (ours, keras_layer):
        layer.build(shape)
        layer.set_weights(weights)
    inputs, upstream = RNG.normal(3.0, size=shape), RNG.normal(size=shape)
    found = weighted_outputs(ours, inputs, upstream, training=training)
    expected = weighted_outputs(keras_layer, inputs, upstream)
    for ours_part, keras_part in zip(found, expected, strict=True):
        assert_close(ours_part, keras_part, rounding, scale=1.0)


@pytest.mark.parametrize("options", [{"axis": 1}, {"axis": 2}, {"scale": False}])
def test_whatever_keras_can_do(options):
    if keras.backend.backend() == "torch" and options.get("axis") == 1:
        pytest.skip("Keras on torch normalizes over last axes only")
    inputs = RNG.normal(size=(2, 3, 4)).astype("float32")
    expected = keras.layers.LayerNormalization(epsilon=1e-6, **options)(inputs)
    assert_close(array(LayerNormalization(**options)(inputs)), array(expected))
