"""Boolean attention masks: `True` = attend. They are combined here and applied once."""

import functools
from typing import Any

from keras import ops

from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.shapes import check_rank


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Returns the logical and of the masks that are not None, or None if all are."""
    present = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, present) if present else None


def keys_mask(
    attention_mask: Tensor | None, *padding_masks: Tensor | None, prefix: str = ""
) -> Tensor | None:
    """Returns the combined mask `[batch or 1, queries or 1, keys]`, or None if there is no mask.

    Args:
        attention_mask: `[batch or 1, queries or 1, keys]`.
        *padding_masks: `[batch, keys]`.
        prefix: Prefix of the masks' names in errors.

    Raises:
        ValueError: If a mask has another rank.
    """
    length = "source_length" if prefix else "length"
    check_rank(f"{prefix}attention_mask", attention_mask, f"[batch, length, {length}]")
    for mask in padding_masks:
        check_rank(f"{prefix}padding_mask", mask, f"[batch, {length}]")
    padding_mask = combine_masks(*padding_masks)
    if padding_mask is not None:
        padding_mask = ops.expand_dims(padding_mask, 1)
    return combine_masks(attention_mask, padding_mask)


def causal_mask(query_length: Any, key_length: Any, query_start: Any) -> Tensor:
    """Returns a mask `[1, query_length, key_length]` that hides the future (section 3.2.3).

    `query_start` is the position of the first query among the keys, 0 without a cache.
    """
    query_positions = query_start + ops.arange(query_length, dtype="int32")
    key_positions = ops.arange(key_length, dtype="int32")
    visible = ops.expand_dims(key_positions, 0) <= ops.expand_dims(query_positions, 1)
    return ops.expand_dims(visible, 0)


def segment_mask(query_segments: Tensor, key_segments: Tensor) -> Tensor:
    """Returns a mask `[batch, query_length, key_length]`, True within the same segment.

    The arguments are segment numbers, int32 `[batch, query_length]` and `[batch, key_length]`.
    """
    return ops.equal(ops.expand_dims(query_segments, 2), ops.expand_dims(key_segments, 1))


def segment_positions(segments: Tensor) -> Tensor:
    """Returns each token's position in its segment, from 0, int32 `[batch, length]`.

    The tokens of a segment must be adjacent.
    """
    # Not `ops.arange`, which needs the length: in functional models it is unknown.
    places = ops.cumsum(ops.ones_like(segments), axis=1)
    is_earlier = ops.expand_dims(places, 1) < ops.expand_dims(places, 2)
    earlier = ops.logical_and(segment_mask(segments, segments), is_earlier)
    return ops.sum(ops.cast(earlier, "int32"), axis=2)
