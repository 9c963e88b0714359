"""Layer normalisation with a gradient in few passes over memory."""

import functools

import keras
from keras import ops

from keras_transformer.layers.checks import check_positive_number
from keras_transformer.layers.dtypes import at_least_float32


def _normalize(states, epsilon):
    """Returns states of mean 0 and variance 1 over the last axis, and their scale."""
    import tensorflow as tf

    centered = states - tf.reduce_mean(states, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    return centered * inverse, inverse


@functools.cache
def _row_normalizer(width, dtype, output_dtype):
    """Returns a TensorFlow function that normalises rows, with the gradient written down.

    TensorFlow runs every operation as a pass over memory, and its own gradient takes about twenty.
    This one takes fewer; in float32 the result is the same up to rounding.

    All models share the function, because TensorFlow keeps every custom gradient for ever, together
    with the graph in which it was made.
    """
    import tensorflow as tf

    wide = at_least_float32(output_dtype)
    rows, weights = tf.TensorSpec([None, width], dtype), tf.TensorSpec([width], wide)

    @tf.function(input_signature=[rows, weights, weights, tf.TensorSpec([], wide)])
    def normalize_rows(rows, gamma, beta, epsilon):
        @tf.custom_gradient
        def normalize(rows, gamma, beta):
            normalized, inverse = _normalize(tf.cast(rows, wide), epsilon)

            def gradient(upstream):
                upstream = tf.cast(upstream, wide)
                products = upstream * normalized
                # Sums over rows and over columns as matrix products: several times faster.
                ones = tf.ones([1, tf.shape(normalized)[0]], wide)
                share = tf.expand_dims(gamma / width, 1)
                mean = tf.matmul(upstream, share)
                correlation = tf.matmul(products, share)
                rows_gradient = upstream * gamma - (mean + normalized * correlation)
                return (
                    tf.cast(rows_gradient * inverse, dtype),
                    tf.squeeze(tf.matmul(ones, products), 0),
                    tf.squeeze(tf.matmul(ones, upstream), 0),
                )

            return tf.cast(normalized * gamma + beta, output_dtype), gradient

        return normalize(rows, gamma, beta)

    return normalize_rows


def _tensorflow_layer_normalization(inputs, gamma, beta, epsilon, output_dtype, training):
    import tensorflow as tf

    wide = at_least_float32(output_dtype)
    inputs, gamma, beta = map(tf.convert_to_tensor, (inputs, gamma, beta))
    gamma, beta = tf.cast(gamma, wide), tf.cast(beta, wide)
    if not training:
        normalized, _ = _normalize(tf.cast(inputs, wide), epsilon)
        return tf.cast(normalized * gamma + beta, output_dtype)
    width = inputs.shape[-1]
    normalize_rows = _row_normalizer(width, inputs.dtype.name, output_dtype)
    rows = tf.reshape(inputs, [-1, width])
    outputs = tf.reshape(normalize_rows(rows, gamma, beta, epsilon), tf.shape(inputs))
    outputs.set_shape(inputs.shape)
    return outputs


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` with a faster gradient on TensorFlow.

    The arguments, the weights and the numbers are those of Keras: `(x - mean) / sqrt(variance +
    epsilon) * gamma + beta`, computed in at least float32. Over the last axis, with both weights,
    it has a faster gradient on TensorFlow while training; anything else is left to Keras.

    Differs from Keras in a default: epsilon is 1e-6, as in tensor2tensor, not 1e-3.

    Args:
        epsilon: Added to the variance.
        **kwargs: As in `keras.layers.LayerNormalization`.

    Call arguments:
        inputs: `[..., width]`.
        training: Whether a gradient will be taken.

    Returns:
        A tensor of the shape of `inputs`.

    Example:

    >>> layer = keras_transformer.layers.LayerNormalization()
    >>> ops.shape(layer(keras.random.normal((2, 5, 512))))
    (2, 5, 512)

    Reference: Ba et al. (2016), equations (3) and (4); Vaswani et al. (2017), section 5.4.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        check_positive_number("epsilon", epsilon)
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs, training=None):
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras would round the result to integers.
        is_plain = (
            self.axis in ([-1], [len(inputs.shape) - 1])
            and self.gamma is not None
            and self.beta is not None
            and not self.rms_scaling
        )
        if keras.backend.backend() != "tensorflow" or not is_plain:
            return super().call(inputs)
        return _tensorflow_layer_normalization(
            inputs, self.gamma, self.beta, self.epsilon, self.compute_dtype, training
        )
