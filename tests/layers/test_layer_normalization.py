"""Layer normalization is that of Keras, in value and gradient."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import LayerNormalization
from tests.layers.oracle_parameters import array

RNG = np.random.default_rng(7)


def weighted_outputs(layer, inputs, upstream, **kwargs):
    """Returns the outputs, and the gradients of their weighted sum: of inputs and both weights."""
    import tensorflow as tf

    inputs = tf.constant(inputs, layer.compute_dtype)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, **kwargs)
        total = tf.reduce_sum(tf.cast(outputs, upstream.dtype) * upstream)
    gradients = tape.gradient(total, [inputs, layer.gamma.value, layer.beta.value])
    return [np.array(tf.cast(tensor, "float64")) for tensor in (outputs, *gradients)]


@pytest.mark.tensorflow_only("the gradient that is written down")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(7, 12), (3, 5, 12), (2, 3, 4, 12), (0, 5, 12), (2, 5, 3)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-6), ("mixed_bfloat16", 2e-2)]
)
def test_gradients_are_those_of_keras(dtype, tolerance, shape, training):
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
        scale = max(1.0, np.abs(keras_part).max(initial=0))
        np.testing.assert_allclose(ours_part, keras_part, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize(
    "options",
    [{"axis": 1}, {"axis": [1, 2]}, {"axis": -1}, {"axis": 2}, {"scale": False}, {"center": False}],
)
def test_whatever_keras_can_do(options):
    if keras.backend.backend() == "torch" and options.get("axis") == 1:
        pytest.skip("Keras on torch normalizes over last axes only")
    inputs = RNG.normal(size=(2, 3, 4)).astype("float32")
    expected = keras.layers.LayerNormalization(epsilon=1e-6, **options)(inputs)
    np.testing.assert_allclose(
        array(LayerNormalization(**options)(inputs)), array(expected), atol=1e-5
    )


def test_small_differences_of_large_inputs_survive():
    """Where the mean of squares less the square of the mean would be noise."""
    inputs = 1000 + np.array([[0.0, 0.25, 0.5, 0.75]])
    outputs = array(LayerNormalization()(inputs))
    deviations = inputs - inputs.mean()
    expected = deviations / np.sqrt((deviations**2).mean() + 1e-6)
    # Keras on JAX subtracts the mean after the scaling, from numbers of 4,000: 2e-4; noise is 0.5.
    np.testing.assert_allclose(outputs, expected, atol=1e-3)


@pytest.mark.tensorflow_only("its variables")
def test_variables_are_inputs_too():
    import tensorflow as tf

    layer, values = LayerNormalization(), RNG.normal(size=(2, 3, 4)).astype("float32")
    variable = tf.Variable(values)
    with tf.GradientTape() as tape:
        outputs = layer(variable, training=True)
    np.testing.assert_array_equal(outputs, layer(values))
    assert tape.gradient(outputs, variable).shape == values.shape
