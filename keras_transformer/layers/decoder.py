"""The decoder: positions, dropout and a stack of blocks, with the cache of decoding."""

from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_transformer.layers.caches import DecoderCache
from keras_transformer.layers.checks import check_built
from keras_transformer.layers.composite_layer import CompositeLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.recomputation import recomputed
from keras_transformer.layers.stack import (
    build_once,
    built_final_norm,
    check_stack,
    checked_blocks,
    make_position,
    stack_config,
    stack_from_config,
    stack_keeps_shape,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(CompositeLayer):
    """A stack of decoder blocks over embedded tokens.

    Training calls the layer without a cache, decoding with one.

    Args:
        blocks: The blocks, first to last: `DecoderBlock`s, or layers with their call arguments.
        position, dropout, final_norm, epsilon, seed, remat: As in `Encoder`.

    Call arguments:
        inputs: `[batch, length, d_model]`, embedded and scaled.
        encoder_outputs: `[batch, source_length, encoder_width]`; None for a decoder-only model,
            or with a cache.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1, or with a
            cache for the positions after the cached ones.
        padding_mask, encoder_padding_mask, attention_mask, encoder_attention_mask,
            use_causal_mask, cache, return_attention_scores, training: As in `DecoderBlock`.

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
        position: str | keras.layers.Layer | None = "sinusoidal",
        dropout: float = 0.1,
        final_norm: bool | None = None,
        epsilon: float = 1e-6,
        seed: int | None = None,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.blocks = checked_blocks(blocks)
        self.position = make_position(position, self.dtype_policy)
        self.dropout = dropout
        self.final_norm = final_norm
        self.epsilon = epsilon
        self.seed = seed
        self.remat = remat
        check_stack(self)
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None) -> None:
        build_once(self.position, inputs_shape)
        self.dropout_layer.build(inputs_shape)
        self.norm_layer = built_final_norm(self, inputs_shape)
        shapes = [shape for shape in (inputs_shape, encoder_outputs_shape) if shape is not None]
        for block in self.blocks:
            build_once(block, *shapes)

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
                x = recomputed(block, training)(x, *encoder_states, **arguments)
            else:
                x = block(x, *encoder_states, training=training, **arguments)
        x = x if self.norm_layer is None else self.norm_layer(x, training=training)
        if cache is not None:
            return x, DecoderCache(cache.length + length, tuple(caches))
        return (x, scores) if return_attention_scores else x

    def make_cache(
        self, encoder_outputs: Tensor | None = None, batch_size: Any = None, max_length: Any = None
    ) -> DecoderCache:
        """Returns a cache for the first call; the arguments are those of `DecoderBlock.make_cache`.

        Returns:
            A named tuple of `length`, the number of positions decoded, int32, and `blocks`, the
            caches of the blocks.
        """
        check_built(self)
        blocks = tuple(
            block.make_cache(encoder_outputs, batch_size, max_length) for block in self.blocks
        )
        return DecoderCache(ops.zeros((), dtype="int32"), blocks)

    def reorder_cache(self, cache: DecoderCache, rows: Tensor | None) -> DecoderCache:
        """Returns the cache whose row r is row `rows[r]` of `cache`, as a beam search asks for.

        The keys and values of the encoder's outputs are not reordered, because all rows of a
        sentence share them.

        Args:
            cache: From `make_cache` or `call`.
            rows: int32 `[rows]`, `rows[r]` of the same sentence as r; None for no change.
        """
        return cache.reorder(rows)

    def _keeps_shape(self) -> bool:
        return super()._keeps_shape() and stack_keeps_shape(self)

    def get_config(self) -> dict:
        return {**super().get_config(), **stack_config(self)}

    @classmethod
    def from_config(cls, config: dict) -> Self:
        return stack_from_config(cls, config)
