"""The state of a model that decodes: its caches, and which beam wrote which key."""

from typing import NamedTuple

from keras import ops

from keras_transformer.layers.caches import DecoderCache, FixedCache, hypotheses_of, take_entries
from keras_transformer.layers.tensors import Tensor, greatest


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
    """State of decoding a batch of sentences whose beams share the caches.

    A cache has `width` slots per position, one for each beam. To reorder the beams, a search moves
    the numbers in `slots`, and no keys.
    """

    cache: DecoderCache
    source_mask: Tensor  # bool [batch, source_length], `True` = a real position
    # int32 [batch, width, length]: the slot that holds the beam's own token of each position; -1 at
    # positions that are not decoded yet.
    slots: Tensor

    def advance(self, parents: Tensor | None) -> tuple["SharedDecodingState", dict]:
        """Returns the state in which the beams follow their parents, and arguments of the decoder.

        The beams of a sentence are decoded as `width` positions of one sequence, so they share one
        cache; a mask hides the tokens of other beams.
        """
        slots = self.slots
        batch, width, length = ops.shape(slots)
        position = self.cache.length // width
        if parents is not None:
            # [batch, width, length] -> [batch * width, length] -> [batch, width, length]
            flat = ops.reshape(slots, (batch * width, length))
            slots = ops.reshape(ops.take(flat, parents, axis=0), (batch, width, length))
        beams = ops.arange(width, dtype="int32")
        new_slots = ops.reshape(beams, (1, width, 1))  # Each beam writes to its own slot.
        if isinstance(self.cache.blocks[0].self_attention, FixedCache):
            is_here = ops.equal(ops.arange(length, dtype="int32"), position)
            slots = ops.where(is_here, new_slots, slots)
        else:
            new_slots = ops.broadcast_to(new_slots, (batch, width, 1))
            slots, length = ops.concatenate([slots, new_slots], axis=2), length + 1
        mask = ops.equal(ops.expand_dims(slots, 3), beams)
        return self._replace(slots=slots), {
            # [batch, width, length, width] -> [batch, width, length * width]
            "attention_mask": ops.reshape(mask, (batch, width, length * width)),
            "positions": ops.broadcast_to(position, (width,)),
            "use_causal_mask": False,
        }

    def keep(self, sentences: Tensor) -> "SharedDecodingState":
        """Returns the state of some sentences, int32 `[kept]`, with merged caches."""
        kept = take_entries(self, sentences)
        return kept._replace(cache=kept.cache.merged())


AnyState = DecodingState | SharedDecodingState
