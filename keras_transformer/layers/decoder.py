"""The decoder: a stack of blocks with the cache of decoding, section 3.1."""

from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_transformer.layers import stack
from keras_transformer.layers.caches import DecoderCache, check_built
from keras_transformer.layers.composite_layer import CompositeLayer, check_arguments
from keras_transformer.layers.dropout_and_normalization import Dropout
from keras_transformer.layers.encoder import EncoderBlock
from keras_transformer.layers.tensors import Tensor, combine_masks


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(CompositeLayer):
    """A stack of decoder blocks over embedded tokens.

    Training calls the layer without a cache, decoding with one.

    Args:
        blocks: `DecoderBlock`s, or any layers that take their call arguments. A block that is in
            the list twice is applied twice.
        position: `"sinusoidal"`, a layer that adds positions to `[batch, length, d_model]` (and
            takes `positions=`), or None. `"auto"` is None if a block has a `position` of its own,
            and `"sinusoidal"` otherwise.
        dropout: Dropout rate of the sum of embedding and position.
        final_norm: Whether a layer norm follows the last block; None adds one to pre-norm blocks.
        epsilon: Added to the variance in the final norm.
        seed: Integer seed of the dropout, or None.
        remat: Whether the gradient recomputes the blocks (`keras.remat`) to save memory.

    Call arguments:
        inputs: `[batch, length, d_model]`, embedded and scaled.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1, or with a
            cache for the positions after the cached ones.
        encoder_outputs, padding_mask, encoder_padding_mask: As in `DecoderBlock`.
        attention_mask, encoder_attention_mask, use_causal_mask: As in `DecoderBlock`.
        cache, return_attention_scores, training: As in `DecoderBlock`.

    Returns:
        `[batch, length, d_model]`. With `return_attention_scores=True`, a tuple of this tensor and
        a list with a dict for each block, of the weights `"self"` and `"cross"`. With a cache, a
        tuple of this tensor and the new cache.

    Example:

    >>> from keras_transformer.layers import Decoder, DecoderBlock
    >>> decoder = Decoder([DecoderBlock(num_heads=8, intermediate_dim=2048) for _ in range(6)])
    >>> ops.shape(decoder(keras.random.normal((2, 5, 512)), keras.random.normal((2, 7, 512))))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.1.
    """

    def __init__(
        self,
        blocks: Sequence[keras.layers.Layer],
        position: str | keras.layers.Layer | None = "auto",
        dropout: float = 0.1,
        final_norm: bool | None = None,
        epsilon: float = 1e-6,
        seed: int | None = None,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.blocks = stack.checked_blocks(blocks, lambda block: isinstance(block, EncoderBlock))
        self.position = stack.make_position(position, self.blocks, self.dtype_policy)
        self.dropout = dropout
        self.final_norm = final_norm
        self.epsilon = epsilon
        self.seed = seed
        self.remat = remat
        check_arguments(self, Decoder)
        stack.freeze(self)
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None) -> None:
        other_shapes = () if encoder_outputs_shape is None else (encoder_outputs_shape,)
        stack.build(self, inputs_shape, *other_shapes)

    _check_inputs = staticmethod(stack.check_inputs)

    def call(
        self,
        inputs: Tensor,
        encoder_outputs: Tensor | None = None,
        padding_mask: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_causal_mask: bool = True,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        encoder_outputs_mask: Tensor | None = None,
    ) -> Tensor | tuple:
        length = ops.shape(inputs)[1]
        if cache is None:
            # An implicit mask does not cover cached positions.
            padding_mask = combine_masks(padding_mask, mask, inputs_mask)
        elif positions is None:
            positions = cache.length + ops.arange(length, dtype="int32")
        x = inputs if self.position is None else self.position(inputs, positions=positions)
        x, scores, caches = self.dropout_layer(x, training=training), [], []
        arguments = {
            "padding_mask": padding_mask,
            "encoder_padding_mask": combine_masks(encoder_padding_mask, encoder_outputs_mask),
            "attention_mask": attention_mask,
            "encoder_attention_mask": encoder_attention_mask,
        }
        # Blocks of other classes need not accept the arguments that are at their defaults.
        if not use_causal_mask:
            arguments["use_causal_mask"] = False
        if return_attention_scores:
            arguments["return_attention_scores"] = True
        encoder_states = () if encoder_outputs is None else (encoder_outputs,)
        for index, block in enumerate(self.blocks):
            if cache is not None:
                x, block_cache = block(
                    x, *encoder_states, cache=cache.blocks[index], training=training, **arguments
                )
                caches.append(block_cache)
            elif return_attention_scores:
                x, block_scores = block(x, *encoder_states, training=training, **arguments)
                scores.append(block_scores)
            elif self.remat:
                x = stack.recomputed(block, training)(x, *encoder_states, **arguments)
            else:
                x = block(x, *encoder_states, training=training, **arguments)
        x = x if self.norm_layer is None else self.norm_layer(x, training=training)
        if cache is not None:
            return x, DecoderCache(cache.length + length, tuple(caches))
        return (x, scores) if return_attention_scores else x

    def make_cache(
        self, encoder_outputs: Tensor | None = None, batch_size: Any = None, max_length: Any = None
    ) -> DecoderCache:
        """Returns a cache for the first call: a named tuple of `length`, int32, and `blocks`.

        Args:
            encoder_outputs, batch_size, max_length: As in `DecoderBlock.make_cache`.
        """
        check_built(self)
        sizes = batch_size, max_length
        caches = (block.make_cache(encoder_outputs, *sizes) for block in self.blocks)
        return DecoderCache(ops.zeros((), dtype="int32"), tuple(caches))

    def reorder_cache(self, cache: DecoderCache, parents: Tensor | None) -> DecoderCache:
        """Returns the cache whose hypothesis h was `parents[h]`, as a beam search asks for.

        Args:
            cache: From `make_cache` or `call`.
            parents: int32 `[hypotheses]`, each of the same sentence as before; None for no change.
        """
        return cache.reorder(parents)

    def _keeps_shape(self) -> bool:
        return super()._keeps_shape() and stack.keeps_shape(self)

    def get_config(self) -> dict:
        return {**super().get_config(), **stack.config(self)}

    @classmethod
    def from_config(cls, config: dict) -> Self:
        return stack.from_config(cls, config)
