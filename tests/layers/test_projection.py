"""`project`, and kernels that are stored as their transposes."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import FeedForward, MultiHeadAttention
from keras_transformer.layers.projection import project, transposed_kernels

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 9), (2, 4, 5)])
@pytest.mark.parametrize("use_bias", [False, True])
def test_leading_axes_are_kept(shape, use_bias):
    inputs = GENERATOR.normal(size=(*shape, 6)).astype("float32")
    kernel = GENERATOR.normal(size=(6, 7)).astype("float32")
    bias = GENERATOR.normal(size=7).astype("float32") if use_bias else None
    outputs = project(ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel), bias)
    expected = inputs @ kernel + (0 if bias is None else bias)
    np.testing.assert_allclose(ops.convert_to_numpy(outputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports are TensorFlow's")
class TestTransposedKernels:
    def test_only_the_transposes_are_read(self):
        import tensorflow as tf

        layer, inputs = FeedForward(16), GENERATOR.normal(size=(2, 3, 8)).astype("float32")
        expected = layer(inputs).numpy()
        transposes = _transposes(layer)
        for kernel in (layer.inner_kernel, layer.outer_kernel):
            kernel.assign(tf.zeros_like(kernel))
        with transposed_kernels(transposes):
            found = tf.function(lambda x: layer(x))(inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert not np.allclose(layer(inputs), expected)

    def test_attention_and_its_cache(self):
        import tensorflow as tf

        layer = MultiHeadAttention(num_heads=2, key_dim=4, use_bias=True)
        inputs = GENERATOR.normal(size=(2, 3, 8)).astype("float32")
        expected = layer(inputs, inputs, use_causal_mask=True).numpy()
        transposes = _transposes(layer)
        layer.set_weights([np.zeros(weight.shape) for weight in layer.weights])
        with transposed_kernels(transposes):
            cache, outputs = layer.make_cache(batch_size=2), []
            for step in range(3):
                token = tf.constant(inputs[:, step : step + 1])
                output, cache = layer(token, token, use_causal_mask=True, cache=cache)
                outputs.append(output)
        np.testing.assert_allclose(tf.concat(outputs, 1), expected, rtol=1e-5, atol=1e-5)


def _transposes(layer):
    import tensorflow as tf

    return {
        id(weight): tf.Variable(tf.transpose(weight.value)[None])
        for weight in layer.weights
        if len(weight.shape) == 2
    }
