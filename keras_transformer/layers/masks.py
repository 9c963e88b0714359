"""Boolean attention masks: `True` = attend. They are combined here and applied once."""

from keras import ops


def combine_masks(*masks):
    """Return the logical and of the masks that are not None, or None if all are.

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


def padding_to_attention_mask(padding_mask):
    """Return `[batch, 1, length]`, True where a key may be attended to, from `[batch, length]`."""
    return None if padding_mask is None else ops.expand_dims(padding_mask, 1)


def causal_mask(query_length, key_length, query_start):
    """Return a bool mask `[1, query_length, key_length]` that hides the future (section 3.2.3).

    Args:
        query_length: Number of queries.
        key_length: Number of keys.
        query_start: Position of the first query among the keys: 0 without a cache.
    """
    query_positions = query_start + ops.arange(query_length, dtype="int32")
    key_positions = ops.arange(key_length, dtype="int32")
    visible = ops.expand_dims(key_positions, 0) <= ops.expand_dims(query_positions, 1)
    return ops.expand_dims(visible, 0)


def segment_mask(query_segments, key_segments):
    """Return a bool mask `[batch, query_length, key_length]` between tokens of the same segment.

    Args:
        query_segments: int32 `[batch, query_length]`, the number of each token's segment.
        key_segments: int32 `[batch, key_length]`.
    """
    return ops.equal(ops.expand_dims(query_segments, 2), ops.expand_dims(key_segments, 1))


def segment_positions(segments):
    """Return each token's position in its segment, from 0, int32 `[batch, length]`.

    Args:
        segments: int32 `[batch, length]`; the tokens of a segment stand side by side.
    """
    # The first token of the same segment is where the segment begins.
    begin = ops.argmax(ops.cast(segment_mask(segments, segments), "int32"), axis=2)
    # Operations on tensors alone, which a functional model can be made of.
    places = ops.cumsum(ops.ones_like(segments), axis=1) - 1
    return places - ops.cast(begin, "int32")
