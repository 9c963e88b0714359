"""The state of a model that decodes: its caches, and which beam wrote which key."""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.layers.caches import (
    DecoderCache,
    FixedCache,
    hypotheses_of,
    take_entries,
)
from keras_transformer.layers.tensors import Tensor, greatest


class Ancestors(NamedTuple):
    """Maps every beam and position to the cache slot that holds the beam's own token.

    The beams of a sentence share a cache with `width` slots per position. To reorder the beams, a
    search moves these few numbers, and no keys.
    """

    slots: Tensor  # int32 [batch, width, length]; -1 at positions that are not decoded yet

    def extend(self, parents: Tensor | None, position: Tensor, is_fixed: bool) -> "Ancestors":
        """Returns the ancestors after a step in which each beam writes to its own slot."""
        slots = self.slots
        batch, width, length = ops.shape(slots)
        if parents is not None:
            # [batch, width, length] -> [batch * width, length] -> [batch, width, length]
            flat = ops.reshape(slots, (batch * width, length))
            slots = ops.reshape(ops.take(flat, parents, axis=0), (batch, width, length))
        new_slots = ops.reshape(ops.arange(width, dtype="int32"), (1, width, 1))
        if not is_fixed:
            new_slots = ops.broadcast_to(new_slots, (batch, width, 1))
            return Ancestors(ops.concatenate([slots, new_slots], axis=2))
        is_here = ops.equal(ops.arange(length, dtype="int32"), position)
        return Ancestors(ops.where(is_here, new_slots, slots))

    def mask(self) -> Tensor:
        """Returns the keys that each beam may attend to, bool `[batch, width, length * width]`."""
        batch, width, length = ops.shape(self.slots)
        slots = ops.arange(width, dtype="int32")
        mask = ops.equal(ops.expand_dims(self.slots, 3), slots)
        # [batch, width, length, width] -> [batch, width, length * width]
        return ops.reshape(mask, (batch, width, length * width))


class DecodingState(NamedTuple):
    """State of decoding a batch of sentences, with an entry in the caches for each hypothesis."""

    cache: DecoderCache
    source_mask: Tensor  # bool [batch, source_length], `True` = a real position

    def keep(self, sentences: Tensor) -> "DecodingState":
        """Returns the state of some sentences, int32 `[kept]`, with merged caches."""
        keys = self.cache.blocks[0].self_attention.keys
        keys = keys[0] if isinstance(keys, tuple) else keys
        width = ops.shape(keys)[0] // greatest(ops.shape(self.source_mask)[0], 1)
        cache = self.cache.reorder(hypotheses_of(sentences, width))
        blocks = tuple(
            block._replace(cross_attention=take_entries(block.cross_attention, sentences))
            for block in cache.blocks
        )
        mask = take_entries(self.source_mask, sentences)
        return DecodingState(cache._replace(blocks=blocks).merged(), mask)


class SharedDecodingState(NamedTuple):
    """State of decoding a batch of sentences whose beams share the caches."""

    cache: DecoderCache
    source_mask: Tensor  # bool [batch, source_length], `True` = a real position
    ancestors: Ancestors

    @classmethod
    def start(
        cls, cache: DecoderCache, source_mask: Tensor, width: int, max_length: Any
    ) -> "SharedDecodingState":
        """Returns the state before the first step; without a `max_length` the caches grow."""
        length = max_length or cache.blocks[0].self_attention.length  # 0 if it grows.
        slots = ops.full((ops.shape(source_mask)[0], width, length), -1, dtype="int32")
        return cls(cache, source_mask, Ancestors(slots))

    @property
    def width(self) -> int:
        """Number of beams of a sentence."""
        return self.ancestors.slots.shape[1]

    def advance(self, parents: Tensor | None) -> tuple["SharedDecodingState", dict]:
        """Returns the state in which the beams follow their parents, and arguments of the decoder.

        The beams of a sentence are decoded as `width` positions of one sequence, so they share one
        cache; a mask hides the tokens of other beams.
        """
        position = self.cache.length // self.width
        is_fixed = isinstance(self.cache.blocks[0].self_attention, FixedCache)
        ancestors = self.ancestors.extend(parents, position, is_fixed)
        return self._replace(ancestors=ancestors), {
            "attention_mask": ancestors.mask(),
            "positions": ops.broadcast_to(position, (self.width,)),
            "use_causal_mask": False,
        }

    def keep(self, sentences: Tensor) -> "SharedDecodingState":
        """Returns the state of some sentences, int32 `[kept]`, with merged caches."""
        kept = take_entries(self, sentences)
        return kept._replace(cache=kept.cache.merged())


AnyState = DecodingState | SharedDecodingState
