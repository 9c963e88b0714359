"""Operations with a faster or special implementation on TensorFlow, and the usual one elsewhere."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor

_IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
if _IS_TENSORFLOW:
    import tensorflow as tf

    from keras_transformer.layers.kernels import tensorflow_kernels


def dropout(inputs: Tensor, rate: float, seed_generator: keras.random.SeedGenerator) -> Tensor:
    """Drops inputs at random, as `keras.random.dropout`."""
    if not _IS_TENSORFLOW:
        return keras.random.dropout(inputs, rate, seed=seed_generator)
    return tensorflow_kernels.dropout(inputs, rate, seed_generator.next())


def replica_seed(seed: Tensor) -> Tensor:
    """Returns a seed that differs between the replicas of a `tf.distribute` strategy."""
    return tensorflow_kernels.replica_seed(seed) if _IS_TENSORFLOW else seed


def layer_normalization(
    inputs: Tensor, layer: keras.layers.LayerNormalization, training: bool | None
) -> Tensor | None:
    """Returns `inputs` normalized with the weights of a layer; None to leave it to Keras."""
    is_last_axis = layer.axis in ([-1], [len(inputs.shape) - 1])
    has_both_weights = layer.gamma is not None and layer.beta is not None
    if not (_IS_TENSORFLOW and is_last_axis and has_both_weights) or layer.rms_scaling:
        return None
    weights = layer.gamma, layer.beta
    return tensorflow_kernels.layer_normalization(
        inputs, *weights, layer.epsilon, layer.compute_dtype, training
    )


def checked_length(inputs: Tensor, max_length: int, message: str) -> Any:
    """Returns the length of `[batch, length, width]`; TensorFlow checks an unknown one at run time.

    A lookup on a GPU gives zeros, and no error, for positions that are not in the table.
    """
    length = ops.shape(inputs)[1]
    if inputs.shape[1] is not None or not _IS_TENSORFLOW:
        return length
    return tensorflow_kernels.at_most(length, max_length, message)


def map_in_turn(function: Callable, number: Any, dtypes: Any) -> Any:
    """Returns `function(i)` for i from 0 to `number - 1`, stacked as by `ops.map`, in turn.

    By default TensorFlow runs ten iterations of a loop at once, and holds the memory of all.

    Args:
        function: Takes an int32 scalar.
        number: Number of calls.
        dtypes: Type, or nest of types, of what the function returns.
    """
    if _IS_TENSORFLOW:
        options = {"fn_output_signature": dtypes, "parallel_iterations": 1}
        return tf.map_fn(function, tf.range(number), **options)
    return ops.map(function, ops.arange(number, dtype="int32"))


def loop_in_turn(first: Any, end: Any, step: Callable, state: Any) -> Any:
    """As `ops.fori_loop`, but with one step at a time on TensorFlow."""
    if not _IS_TENSORFLOW:
        return ops.fori_loop(first, end, step, state)

    def body(i, state):
        return i + 1, step(i, state)

    start = first, state
    return tf.while_loop(lambda i, _: i < end, body, start, parallel_iterations=1)[1]
