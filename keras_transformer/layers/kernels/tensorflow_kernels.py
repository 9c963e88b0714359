"""Operations of TensorFlow: dropout, layer normalization, seeds of replicas."""

import functools
from typing import Any

import tensorflow as tf

from keras_transformer.layers.dtypes import Tensor, at_least_float32


def dropout(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Drops with 16 random bits for each input, half as many as TensorFlow draws.

    Drawing is most of the cost of dropout on a CPU. The rate is rounded to a multiple of 2^-16,
    and the scale is computed from the rounded rate, so that the expectation stays exact.
    """
    size = tf.size(inputs)
    words = tf.random.stateless_uniform(
        [(size + 1) // 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
    )
    halves = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size]
    threshold = min(round(rate * 2**16), 2**16 - 1)
    keep = tf.reshape(halves >= tf.constant(threshold, tf.uint16), tf.shape(inputs))
    scale = tf.cast(2**16 / (2**16 - threshold), inputs.dtype)
    outputs = inputs * (tf.cast(keep, inputs.dtype) * scale)
    outputs.set_shape(inputs.shape)
    return outputs


def replica_seed(seed: Tensor) -> Tensor:
    """Returns a seed that differs between the replicas of the current strategy."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = tf.cast(context.replica_id_in_sync_group, seed.dtype)
    # An odd constant keeps the first words of the seeds of up to 2^31 replicas apart.
    return seed + tf.stack([replica * 1_640_531_527, tf.zeros_like(replica)])


def at_most(value: Tensor, limit: int, message: str) -> Tensor:
    """Returns an int32 scalar, and checks when the graph runs that it is at most `limit`."""
    check = tf.debugging.assert_less_equal(value, limit, message=message)
    with tf.control_dependencies([check]):  # Otherwise a reader of the value may fail first.
        return tf.identity(value)


def layer_normalization(
    inputs: Tensor, gamma: Any, beta: Any, epsilon: float, output_dtype: str, training: bool | None
) -> Tensor:
    """Normalizes the last axis in at least float32."""
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


def _normalize(states, epsilon):
    """Returns states of mean 0 and variance 1 over the last axis, and 1 / standard deviation."""
    centered = states - tf.reduce_mean(states, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    return centered * inverse, inverse


@functools.cache
def _row_normalizer(width, dtype, output_dtype):
    """Returns a function that normalizes rows and has a custom gradient.

    TensorFlow runs every operation as a pass over memory, and its own gradient takes about twenty.
    This one takes fewer; in float32 the result is the same up to rounding.

    All models share the function, because TensorFlow keeps every custom gradient for ever, together
    with the graph in which it was made.
    """
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
