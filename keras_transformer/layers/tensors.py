"""Tensors: their type, precision, shapes and masks."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

Tensor = Any  # A tensor of the backend in use, or an array-like value.


def at_least_float32(dtype: str) -> str:
    """Returns float32 for half precision and float32; on TensorFlow, float64 stays float64.

    Positions, softmax and logits are computed in it. On JAX and torch, Keras promotes no type
    beyond float32.
    """
    return keras.backend.result_type(dtype, "float32")


def check_shape(name: str, tensor: Any, shape: str, *sizes: Any) -> None:
    """Raises `ValueError` unless `tensor` is None or has the axes of the text `shape`.

    The first axes have these sizes, or 1 where the text says "or 1". A size that is not an int is
    unknown, and is not checked.
    """
    found = getattr(tensor, "shape", None)
    if found is None:
        return
    axes, found = shape[1:-1].split(", "), tuple(found)
    # Another rank or size would broadcast, and mask the wrong positions without an error.
    fits = len(axes) == len(found) and all(
        size == wanted or (size == 1 and axis.endswith(" or 1"))
        for axis, size, wanted in zip(axes, found, sizes, strict=False)
        if isinstance(size, int) and isinstance(wanted, int)
    )
    if not fits:
        here = f" with the sizes {', '.join(map(str, sizes))}" if sizes else ""
        rule = f"`{name}` must have the shape {shape}{here}"
        raise ValueError(f"{rule}. Received: {name} of shape {found}")


def check_weights(sample_weight: Any, losses: Any) -> None:
    """Raises `ValueError` unless weights are None, a scalar, or fit `losses`, axis by axis."""
    shape = getattr(sample_weight, "shape", ())
    if shape and len(shape):  # A `tf.TensorShape` without axes is true.
        rank = len(losses.shape)
        axes = ["batch", "length", *(f"axis {axis}" for axis in range(2, rank))][:rank]
        wanted = f"[{', '.join(f'{axis} or 1' for axis in axes)}]"
        check_shape("sample_weight", sample_weight, wanted, *losses.shape)


def reshape(tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """Reshapes like `ops.reshape`, but infers a single unknown size: decoding graphs stay small.

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


# Masks are bool, `True` = attend.


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Returns the logical and of the masks that are not None, or None if all are."""
    present = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, present) if present else None


def keys_mask(attention_mask: Tensor | None, *padding_masks: Tensor | None) -> Tensor | None:
    """Returns the combined mask `[batch or 1, queries or 1, keys]`, or None if there is no mask.

    The attention mask has this shape, and padding masks are `[batch, keys]`.
    """
    for mask in padding_masks:
        check_shape("mask", mask, "[batch, keys]")
    padding_mask = combine_masks(*padding_masks)
    if padding_mask is not None:
        padding_mask = ops.expand_dims(padding_mask, 1)
    return combine_masks(attention_mask, padding_mask)


def causal_mask(query_length: Any, key_length: Any, query_start: Any = 0) -> Tensor:
    """Returns a mask `[1, query_length, key_length]` that hides the future (section 3.2.3).

    `query_start` is the position of the first query among the keys, 0 without a cache.
    """
    query_positions = query_start + ops.arange(query_length, dtype="int32")
    key_positions = ops.arange(key_length, dtype="int32")
    return ops.expand_dims(key_positions <= ops.expand_dims(query_positions, 1), 0)


def segment_mask(query_segments: Tensor, key_segments: Tensor) -> Tensor:
    """Returns a mask `[batch, query_length, key_length]`, True within the same segment.

    The arguments are segment numbers, int32 `[batch, query_length]` and `[batch, key_length]`.
    """
    return ops.equal(ops.expand_dims(query_segments, 2), ops.expand_dims(key_segments, 1))


def segment_positions(segments: Tensor) -> Tensor:
    """Returns each token's position in its segment, from 0, int32 `[batch, length]`; 0 on padding.

    The tokens of a segment must be adjacent.
    """
    # Not `ops.arange`, which needs the length: in functional models it is unknown.
    positions = ops.cumsum(ops.ones_like(segments), axis=1)
    is_earlier = ops.expand_dims(positions, 1) < ops.expand_dims(positions, 2)
    earlier = ops.logical_and(segment_mask(segments, segments), is_earlier)
    # A row may be wider than a table of learned positions, which its padding must not leave.
    earlier = ops.logical_and(earlier, ops.expand_dims(ops.not_equal(segments, 0), 2))
    return ops.sum(ops.cast(earlier, "int32"), axis=2)
