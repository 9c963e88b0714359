"""Dropout keeps the expectation and follows its seed; layer normalization is that of Keras."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Dropout, LayerNormalization, backend_operations
from keras_transformer.layers.tensors import at_least_float32
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array
from tests.layers.widest_float import WIDEST
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


def test_does_nothing_outside_training():
    inputs = np.ones((3, 3), "float32")
    assert (array(Dropout(0.5)(inputs)) == 1).all()
    assert (array(Dropout(0.5)(inputs, training=False)) == 1).all()


def test_calls_draw_new_masks_and_a_seed_repeats_them():
    def masks(seed):
        layer = Dropout(0.5, seed=seed)
        return [array(layer(np.ones((8, 8), "float32"), training=True)) for _ in range(2)]

    first, second = masks(3)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(masks(3), [first, second])
    for mask in (first, second):
        assert not np.array_equal(masks(4)[0], mask)
    keras.utils.set_random_seed(9)
    unseeded = masks(None)
    keras.utils.set_random_seed(9)
    np.testing.assert_array_equal(masks(None), unseeded)


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


@pytest.mark.tensorflow_only("its own strategies")
def test_a_layer_is_called_in_the_scope_of_a_strategy_too():
    """Where models are built, and where there is no replica whose mask it could be."""
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        outputs = Dropout(0.5, seed=1)(np.ones((101, 999), "float32"), training=True)
    assert abs((array(outputs) == 0).mean() - 0.5) < 0.01


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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(7, 12), (3, 5, 12), (2, 3, 4, 12), (0, 5, 12), (2, 5, 3)])
@pytest.mark.parametrize(
    "dtype, rounding", [("float64", WIDEST), ("float32", "float32"), ("mixed_bfloat16", "bfloat16")]
)
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


@pytest.mark.parametrize(
    "options",
    [{"axis": 1}, {"axis": [1, 2]}, {"axis": -1}, {"axis": 2}, {"scale": False}, {"center": False}],
)
def test_whatever_keras_can_do(options):
    if keras.backend.backend() == "torch" and options.get("axis") == 1:
        pytest.skip("Keras on torch normalizes over last axes only")
    inputs = RNG.normal(size=(2, 3, 4)).astype("float32")
    expected = keras.layers.LayerNormalization(epsilon=1e-6, **options)(inputs)
    assert_close(array(LayerNormalization(**options)(inputs)), array(expected))


def test_small_differences_of_large_inputs_survive():
    """Where the mean of squares less the square of the mean would be noise."""
    inputs = 1000 + np.array([[0.0, 0.25, 0.5, 0.75]])
    outputs = array(LayerNormalization()(inputs))
    deviations = inputs - inputs.mean()
    expected = deviations / np.sqrt((deviations**2).mean() + 1e-6)
    # Keras on JAX subtracts the mean after the scaling, from numbers of 4,000: 2e-4; noise is 0.5.
    np.testing.assert_allclose(outputs, expected, atol=1e-3)
