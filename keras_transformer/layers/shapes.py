"""Shapes of tensors: checks, reshaping, and cutting sequences into blocks."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.layers.dtypes import Tensor


def check_rank(name: str, tensor: Any, shape: str) -> None:
    """Raises `ValueError` unless `tensor` is None or has as many axes as the text `shape`."""
    if tensor is not None and len(tensor.shape) != shape.count(",") + 1:
        # Another rank would broadcast, and mask the wrong positions without an error.
        raise ValueError(
            f"`{name}` must have the shape {shape}. Received: {name} of shape {tuple(tensor.shape)}"
        )


def reshape(tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """As `ops.reshape`, but infers a single unknown size, which keeps decoding graphs small.

    Each size is an int, or the tensor that `ops.shape` gives for an unknown size.
    """
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes) - 1 and all(size > 0 for size in known):
        sizes = [size if isinstance(size, int) else -1 for size in sizes]
    return ops.reshape(tensor, sizes)


def least(first: Any, second: Any) -> Any:
    """Returns the smaller of two numbers, each an int or an int32 scalar.

    While JAX traces a model, an unknown length is a symbolic expression that cannot be compared:
    it counts as the greater number.
    """
    if isinstance(first, int) and isinstance(second, int):
        return min(first, second)
    if _is_expression(first) or _is_expression(second):
        return second if _is_expression(first) else first
    return ops.minimum(first, second)


def greatest(first: Any, second: Any) -> Any:
    """Returns the greater of two numbers, with the rule of `least` for unknown lengths."""
    if _is_expression(first) or _is_expression(second):
        return first if _is_expression(first) else second
    return -least(-first, -second)


def _is_expression(number):
    return not isinstance(number, int) and not hasattr(number, "dtype")


def cut(tensor: Tensor, axis: int, number: Any, size: Any) -> Tensor:
    """Cuts `[..., length, ...]` into blocks `[..., number, size, ...]`, padded with zeros."""
    shape, widths = ops.shape(tensor), [[0, 0] for _ in tensor.shape]
    widths[axis][1] = number * size - shape[axis]
    return ops.reshape(ops.pad(tensor, widths), (*shape[:axis], number, size, *shape[axis + 1 :]))
