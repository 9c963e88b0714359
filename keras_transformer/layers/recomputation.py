"""Blocks that keep only their inputs for the gradient, and recompute the rest."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor


def recomputed(block: keras.layers.Layer, training: bool | None) -> Callable[..., Any]:
    """Returns a function that applies a block, and whose gradient recomputes it (`keras.remat`).

    With `keras.remat` alone, the recomputation would draw another dropout mask, or none.

    Args:
        block: A layer.
        training: Whether to apply dropout; None for no.
    """
    seeds = [one for one in block.variables if all(one is not weight for weight in block.weights)]
    if not training:  # Nothing draws from them, and an export cannot hold them.
        seeds = []
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
