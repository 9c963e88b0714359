"""Beams that share one cache: each knows at which places of it its own tokens stand.

The beams of a sentence write their keys side by side, `width` of them at every position.
Ancestors, int32 `[batch, width, length]`, say for each beam whose key at each position is its own:
those of the beams that it goes on from. A search that reorders beams moves these few numbers, and
no keys.
"""

from keras import ops

_NO_ROW = -1


def no_ancestors(batch, width, length):
    """Return the ancestors before the first step.

    Args:
        batch: Number of sentences.
        width: Beams of each, an int.
        length: Positions of a cache of fixed size; 0 for one that grows.
    """
    return ops.full((batch, width, length), _NO_ROW, dtype="int32")


def next_ancestors(ancestors, rows, position, is_fixed):
    """Return the ancestors up to this step, in which each beam writes its own key.

    Args:
        ancestors: int32 `[batch, width, length]`, those of the step before.
        rows: As in `Transformer.decode_step`.
        position: int32 scalar, that of this step.
        is_fixed: Whether the length stays and places are filled, or it grows.
    """
    batch, width, length = ops.shape(ancestors)
    if rows is not None:
        flat = ops.reshape(ancestors, (batch * width, length))
        ancestors = ops.reshape(ops.take(flat, rows, axis=0), (batch, width, length))
    itself = ops.reshape(ops.arange(width, dtype="int32"), (1, width, 1))
    if not is_fixed:
        itself = ops.broadcast_to(itself, (batch, width, 1))
        return ops.concatenate([ancestors, itself], axis=2)
    is_here = ops.equal(ops.arange(length, dtype="int32"), position)
    return ops.where(is_here, itself, ancestors)


def ancestor_mask(ancestors):
    """Return which keys of its sentence a beam may see, bool `[batch, width, length * width]`."""
    batch, width, length = ops.shape(ancestors)
    beams = ops.arange(width, dtype="int32")
    mask = ops.equal(ops.expand_dims(ancestors, 3), beams)  # [batch, width, length, width]
    return ops.reshape(mask, (batch, width, length * width))
