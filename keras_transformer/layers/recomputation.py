"""Blocks that keep their inputs alone for the gradient, and compute the rest again."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor


def recomputed(block: keras.layers.Layer, training: bool | None) -> Callable[..., Any]:
    """Returns a block as a function whose gradient computes the block again (`keras.remat`).

    `keras.remat` alone has other dropout in the second computation, or none.

    Args:
        block: A layer.
        training: Whether to drop; None for no.
    """
    seeds = [one for one in block.variables if all(one is not weight for weight in block.weights)]
    # On JAX the new seeds are results of the function; elsewhere they are set in it.
    is_functional = keras.backend.backend() == "jax"

    def call(inputs: Tensor, *others: Tensor, **arguments: Any) -> Any:
        before = [ops.copy(seed) for seed in seeds]

        @keras.remat
        def compute(inputs, *others):
            for seed, value in zip(seeds, before, strict=True):
                seed.assign(value)
            outputs = block(inputs, *others, training=bool(training), **arguments)
            return (outputs, [ops.copy(seed) for seed in seeds]) if is_functional else outputs

        outputs = compute(inputs, *others)
        if is_functional:
            outputs, after = outputs
            for seed, value in zip(seeds, after, strict=True):
                seed.assign(value)
        return outputs

    return call
