"""Sequences cut into blocks, for attention in linear memory."""

from typing import Any

from keras import ops

from keras_transformer.layers.dtypes import Tensor


def least(first: Any, second: Any) -> Any:
    """Returns the smaller of two numbers, each an int or an int32 scalar."""
    is_known = isinstance(first, int) and isinstance(second, int)
    return min(first, second) if is_known else ops.minimum(first, second)


def greatest(first: Any, second: Any) -> Any:
    """Returns the greater of two numbers, each an int or an int32 scalar."""
    return -least(-first, -second)


def cut(tensor: Tensor, axis: int, number: Any, size: Any) -> Tensor:
    """Returns `[..., length, ...]` as `[..., number, size, ...]`, filled up with zeros."""
    shape, widths = ops.shape(tensor), [[0, 0] for _ in tensor.shape]
    widths[axis][1] = number * size - shape[axis]
    return ops.reshape(ops.pad(tensor, widths), (*shape[:axis], number, size, *shape[axis + 1 :]))
