"""Ancestors of beams: the places of a shared cache that hold each beam's own tokens."""

from typing import Any, NamedTuple, Self

from keras import ops

from keras_transformer.layers.dtypes import Tensor


class Ancestors(NamedTuple):
    """Maps every beam and position to the cache slot that holds the beam's own token.

    The beams of a sentence share a cache with `width` slots per position. To reorder the beams, a
    search moves these few numbers, and no keys.
    """

    beams: Tensor  # int32 [batch, width, length]; -1 at positions that are not decoded yet

    @classmethod
    def none(cls, batch: Any, width: int, length: Any) -> Self:
        """Returns the ancestors before the first step; `length` is 0 for a growing cache."""
        return cls(ops.full((batch, width, length), -1, dtype="int32"))

    @property
    def width(self) -> int:
        """Number of beams of each sentence."""
        return self.beams.shape[1]

    def extend(self, rows: Tensor | None, position: Tensor, is_fixed: bool) -> Self:
        """Returns the ancestors after a step in which each beam writes to its own slot."""
        ancestors = self.beams
        batch, width, length = ops.shape(ancestors)
        if rows is not None:
            flat = ops.reshape(ancestors, (batch * width, length))
            ancestors = ops.reshape(ops.take(flat, rows, axis=0), (batch, width, length))
        itself = ops.reshape(ops.arange(width, dtype="int32"), (1, width, 1))
        if not is_fixed:
            itself = ops.broadcast_to(itself, (batch, width, 1))
            return self._replace(beams=ops.concatenate([ancestors, itself], axis=2))
        is_here = ops.equal(ops.arange(length, dtype="int32"), position)
        return self._replace(beams=ops.where(is_here, itself, ancestors))

    def mask(self) -> Tensor:
        """Returns the keys that each beam may attend to, bool `[batch, width, length * width]`."""
        batch, width, length = ops.shape(self.beams)
        beams = ops.arange(width, dtype="int32")
        mask = ops.equal(ops.expand_dims(self.beams, 3), beams)  # [batch, width, length, width]
        return ops.reshape(mask, (batch, width, length * width))
