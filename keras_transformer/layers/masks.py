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
