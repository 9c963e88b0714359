"""Operations with a faster or safer implementation on some backends; Keras' own elsewhere."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.tensors import Tensor, at_least_float32

_IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
_IS_JAX = keras.backend.backend() == "jax"
_IS_TORCH = keras.backend.backend() == "torch"
if _IS_TENSORFLOW:
    import tensorflow as tf
if _IS_JAX:
    import jax
if _IS_TORCH:
    import torch


def short_names() -> contextlib.AbstractContextManager:
    """Returns a context in which TensorFlow's variables have names without a path.

    A variable with a new name takes TensorFlow 0.5 ms, and one with a repeated name takes less.
    Keras stores the paths itself.
    """
    return tf.name_scope("") if _IS_TENSORFLOW else contextlib.nullcontext()


def dropout(inputs: Tensor, rate: float, seed_generator: keras.random.SeedGenerator) -> Tensor:
    """Drops inputs at random, like `keras.random.dropout`.

    Drawing random numbers is most of the cost of dropout on a CPU, so TensorFlow, and torch on a
    CPU, draw 16 bits for each input. The rate is then rounded to a multiple of 2^-16, and the scale
    is that of the rounded rate, so the expectation stays exact. On JAX, `_random_words` needs a
    fifth of the operations of JAX's generator.
    """
    if _IS_TENSORFLOW:
        return _dropout_tensorflow(inputs, rate, seed_generator.next())
    if _IS_JAX:
        keep = _random_words(inputs.shape, seed_generator.next()) >= np.uint32(rate * 2**32)
        return ops.where(keep, inputs / (1 - rate), 0)
    if _IS_TORCH and inputs.device.type == "cpu":
        return _dropout_torch(inputs, rate, seed_generator.next())
    return keras.random.dropout(inputs, rate, seed=seed_generator)


def _threshold_and_scale(rate):
    """Returns the smallest random number of 16 bits that keeps an input, and the scale of it."""
    threshold = min(round(rate * 2**16), 2**16 - 1)
    return threshold, 2**16 / (2**16 - threshold)


def _dropout_tensorflow(inputs, rate, seed):
    threshold, scale = _threshold_and_scale(rate)
    size = tf.size(inputs)
    words = tf.random.stateless_uniform(
        [(size + 1) // 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
    )
    halves = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size]
    keep = tf.reshape(halves >= tf.constant(threshold, tf.uint16), tf.shape(inputs))
    outputs = inputs * (tf.cast(keep, inputs.dtype) * tf.cast(scale, inputs.dtype))
    outputs.set_shape(inputs.shape)
    return outputs


def _dropout_torch(inputs, rate, seed):
    threshold, scale = _threshold_and_scale(rate)
    # An odd constant keeps the masks of neighboring seeds apart; the generator uses 32 bits.
    number, counter = seed.tolist()
    generator = torch.Generator().manual_seed((number * 1_640_531_527 + counter) % 2**32)
    words = torch.empty(-(-inputs.numel() // 4), dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    halves = words.view(torch.int16)[: inputs.numel()].reshape(inputs.shape)
    mask = torch.empty_like(inputs)
    return inputs * torch.ge(halves, threshold - 2**15, out=mask).mul_(scale)


def _random_words(shape, seed):
    """Returns a uint32 of random bits for each element: its index, encrypted with the seed.

    XLA computes it inside other passes over memory, and each of several devices only its share.

    Reference: Even and Mansour (1997), with the last step of MurmurHash3 in two rounds.
    """
    keys = jax.random.bits(seed, (3,), "uint32")
    words = jax.numpy.zeros(shape, "uint32")
    for axis, size in enumerate(shape):
        words = words * np.uint32(size) + jax.lax.broadcasted_iota("uint32", shape, axis)
    words = words ^ keys[0]
    for key in keys[1:]:
        words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
        words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
        words = words ^ (words >> 16) ^ key
    return words


def replica_seed(seed: Tensor) -> Tensor:
    """Returns a seed that differs between the replicas of a `tf.distribute` strategy."""
    context = tf.distribute.get_replica_context() if _IS_TENSORFLOW else None
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = tf.cast(context.replica_id_in_sync_group, seed.dtype)
    # An odd constant keeps the first words of the seeds of up to 2^31 replicas apart.
    return seed + tf.stack([replica * 1_640_531_527, tf.zeros_like(replica)])


def layer_normalization(
    inputs: Tensor, layer: keras.layers.LayerNormalization, training: bool | None
) -> Tensor | None:
    """Returns `inputs` normalized with the weights of a layer; None to leave it to Keras."""
    is_last_axis = layer.axis in ([-1], [len(inputs.shape) - 1])
    has_both_weights = layer.gamma is not None and layer.beta is not None
    is_faster = _IS_TENSORFLOW or (training and _is_jax_on_cpu())
    if not (is_faster and is_last_axis and has_both_weights) or layer.rms_scaling:
        return None
    output_dtype = layer.compute_dtype
    wide = at_least_float32(output_dtype)
    inputs = ops.convert_to_tensor(inputs)
    gamma, beta = (ops.cast(weight, wide) for weight in (layer.gamma, layer.beta))
    if not training:
        normalized, _ = _normalize(ops.cast(inputs, wide), layer.epsilon)
        return ops.cast(normalized * gamma + beta, output_dtype)
    width = inputs.shape[-1]
    normalize = functools.partial(_normalize_vectors, output_dtype=output_dtype)
    if _IS_TENSORFLOW:
        normalize = _shared_normalizer(width, inputs.dtype.name, output_dtype)
    # [..., width] -> [vectors, width] -> [..., width]
    vectors = normalize(ops.reshape(inputs, [-1, width]), gamma, beta, layer.epsilon)
    outputs = ops.reshape(vectors, ops.shape(inputs))
    if _IS_TENSORFLOW:
        outputs.set_shape(inputs.shape)
    return outputs


def _normalize(states, epsilon):
    """Returns states of mean 0 and variance 1 over the last axis, and 1 / standard deviation."""
    centered = states - ops.mean(states, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    inverse = ops.rsqrt(variance + epsilon)
    return centered * inverse, inverse


def _normalize_vectors(vectors, gamma, beta, epsilon, output_dtype):
    """Returns `[vectors, width]` normalized over the last axis, with a custom gradient.

    On a CPU every operation is a pass over memory, and the gradients of TensorFlow and JAX take
    about twenty. This one takes fewer; in float32 the result is the same up to rounding.
    """

    @ops.custom_gradient
    def normalize(vectors, gamma, beta):
        normalized, inverse = _normalize(ops.cast(vectors, gamma.dtype), epsilon)

        def gradient(upstream):
            upstream = ops.cast(upstream, gamma.dtype)
            products = upstream * normalized
            # Sums over either axis are several times faster as matrix products.
            ones = ops.ones((1, ops.shape(normalized)[0]), gamma.dtype)
            mean_weights = ops.expand_dims(gamma / gamma.shape[0], 1)
            mean = ops.matmul(upstream, mean_weights)
            correlation = ops.matmul(products, mean_weights)
            vectors_gradient = upstream * gamma - (mean + normalized * correlation)
            return (
                ops.cast(vectors_gradient * inverse, vectors.dtype),
                ops.squeeze(ops.matmul(ones, products), 0),
                ops.squeeze(ops.matmul(ones, upstream), 0),
            )

        return ops.cast(normalized * gamma + beta, output_dtype), gradient

    return normalize(vectors, gamma, beta)


@functools.cache
def _shared_normalizer(width, dtype, output_dtype):
    """Returns `_normalize_vectors` as a TensorFlow function.

    All models share it, because TensorFlow keeps every custom gradient forever, together with the
    graph in which it was made.
    """
    wide = at_least_float32(output_dtype)
    vectors, weights = tf.TensorSpec([None, width], dtype), tf.TensorSpec([width], wide)

    @tf.function(input_signature=[vectors, weights, weights, tf.TensorSpec([], wide)])
    def normalize(vectors, gamma, beta, epsilon):
        return _normalize_vectors(vectors, gamma, beta, epsilon, output_dtype)

    return normalize


def softmax(scores: Tensor, training: bool | None) -> Tensor:
    """Returns `ops.softmax(scores, axis=-1)`; JAX trains with a faster gradient on a CPU."""
    if not (training and _is_jax_on_cpu()):  # JAX has no forward mode for a custom gradient.
        return ops.softmax(scores, axis=-1)

    @ops.custom_gradient
    def weights_of(scores):
        weights = ops.softmax(scores, axis=-1)

        def gradient(upstream):
            return weights * (upstream - ops.sum(upstream * weights, axis=-1, keepdims=True))

        return weights, gradient

    return weights_of(scores)


def _is_jax_on_cpu():
    # Asks when a layer is called: the answer starts JAX's devices.
    return _IS_JAX and jax.default_backend() == "cpu"


def checked_length(inputs: Tensor, max_length: int, message: str) -> Any:
    """Returns the length of `[batch, length, width]`; TensorFlow checks an unknown one at run time.

    A lookup on a GPU gives zeros, and no error, for positions that are not in the table.
    """
    length = ops.shape(inputs)[1]
    if inputs.shape[1] is not None or not _IS_TENSORFLOW:
        return length
    check = tf.debugging.assert_less_equal(length, max_length, message=message)
    with tf.control_dependencies([check]):  # Otherwise a reader of the length may fail first.
        return tf.identity(length)


def map_in_turn(function: Callable, number: Any, dtypes: Any) -> Any:
    """Returns `function(i)` for i from 0 to `number - 1`, stacked as by `ops.map`, in turn.

    By default TensorFlow runs ten iterations of a loop at once, and holds the memory of all.
    `dtypes` is the type, or the nest of types, of what the function returns.
    """
    if _IS_TENSORFLOW:
        options = {"fn_output_signature": dtypes, "parallel_iterations": 1}
        return tf.map_fn(function, tf.range(number), **options)
    return ops.map(function, ops.arange(number, dtype="int32"))


def loop_in_turn(first: Any, end: Any, step: Callable, state: Any) -> Any:
    """Runs `ops.fori_loop(first, end, step, state)`, on TensorFlow with one step at a time."""
    if not _IS_TENSORFLOW:
        return ops.fori_loop(first, end, step, state)

    def body(i, state):
        return i + 1, step(i, state)

    start = first, state
    return tf.while_loop(lambda i, _: i < end, body, start, parallel_iterations=1)[1]
