"""Boolean attention masks: `True` = attend. They are combined here and applied once."""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.layers.checks import check_rank
from keras_transformer.layers.dtypes import Tensor


class DecoderMasks(NamedTuple):
    """Masks of a decoder block, by the names of its call arguments."""

    padding_mask: Tensor | None = None
    encoder_padding_mask: Tensor | None = None
    attention_mask: Tensor | None = None
    encoder_attention_mask: Tensor | None = None

    def of_self_attention(self, *implicit_masks: Tensor | None) -> Tensor | None:
        """Returns the mask of the self-attention; implicit masks are Keras' own."""
        return key_mask(self.attention_mask, self.padding_mask, *implicit_masks)

    def of_cross_attention(self, *implicit_masks: Tensor | None) -> Tensor | None:
        """Returns the mask of the attention to the encoder."""
        masks = self.encoder_attention_mask, self.encoder_padding_mask
        return key_mask(*masks, *implicit_masks, prefix="encoder_")


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Returns the logical and of the masks that are not None, or None if all are.

    Args:
        *masks: Boolean tensors that broadcast against each other, or None.
    """
    present = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    if not present:
        return None
    combined = present[0]
    for mask in present[1:]:
        combined = ops.logical_and(combined, mask)
    return combined


def key_mask(
    attention_mask: Tensor | None, *padding_masks: Tensor | None, prefix: str = ""
) -> Tensor | None:
    """Returns the mask of an attention, `[batch or 1, queries or 1, keys]`, or None.

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

    Args:
        query_length: Number of queries.
        key_length: Number of keys.
        query_start: Position of the first query among the keys: 0 without a cache.
    """
    query_positions = query_start + ops.arange(query_length, dtype="int32")
    key_positions = ops.arange(key_length, dtype="int32")
    visible = ops.expand_dims(key_positions, 0) <= ops.expand_dims(query_positions, 1)
    return ops.expand_dims(visible, 0)


def segment_mask(query_segments: Tensor, key_segments: Tensor) -> Tensor:
    """Returns a mask `[batch, query_length, key_length]` between tokens of the same segment.

    Args:
        query_segments: int32 `[batch, query_length]`, the number of each token's segment.
        key_segments: int32 `[batch, key_length]`.
    """
    return ops.equal(ops.expand_dims(query_segments, 2), ops.expand_dims(key_segments, 1))


def segment_positions(segments: Tensor) -> Tensor:
    """Returns each token's position in its segment, from 0, int32 `[batch, length]`.

    Args:
        segments: int32 `[batch, length]`; the tokens of a segment stand side by side.
    """
    # The first token of the same segment is where the segment begins.
    begin = ops.argmax(ops.cast(segment_mask(segments, segments), "int32"), axis=2)
    # Only operations on tensors, as functional models need.
    places = ops.cumsum(ops.ones_like(segments), axis=1) - 1
    return places - ops.cast(begin, "int32")
