"""The encoder: positions, dropout and a stack of blocks."""

from collections.abc import Sequence
from typing import Any, Self

import keras

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
class Encoder(CompositeLayer):
    """A stack of encoder blocks over embedded tokens.

    Args:
        blocks: The blocks, first to last: `EncoderBlock`s, or any layers that take
            `(inputs, padding_mask=..., attention_mask=...)`. A block that is in the list several
            times is applied several times with the same weights.
        position: `"sinusoidal"`, a layer that adds positions to `[batch, length, d_model]` (and
            takes `positions=`), or None.
        dropout: Dropout rate of the sum of embedding and position.
        final_norm: Whether a layer norm follows the last block; None adds one to pre-norm blocks.
        epsilon: Added to the variance in the final norm.
        seed: Integer seed of the dropout, or None.
        remat: Whether the gradient recomputes the blocks (`keras.remat`) instead of storing what
            is computed inside them.

    Call arguments:
        inputs: `[batch, length, d_model]`, embedded and scaled.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1.
        padding_mask, attention_mask, return_attention_scores, training: As in `EncoderBlock`.

    Returns:
        `[batch, length, d_model]`. With `return_attention_scores=True`, a tuple of this tensor and
        a list of attention weights, one entry for each block.

    Example:

    >>> from keras_transformer.layers import Encoder, EncoderBlock
    >>> encoder = Encoder([EncoderBlock(num_heads=8, intermediate_dim=2048) for _ in range(6)])
    >>> ops.shape(encoder(keras.random.normal((2, 5, 512))))
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

    def build(self, inputs_shape: tuple) -> None:
        build_once(self.position, inputs_shape)
        self.dropout_layer.build(inputs_shape)
        self.norm_layer = built_final_norm(self, inputs_shape)
        for block in self.blocks:
            build_once(block, inputs_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, list]:
        padding_mask = combine_masks(padding_mask, mask, inputs_mask)
        x = inputs if self.position is None else self.position(inputs, positions=positions)
        x, scores = self.dropout_layer(x, training=training), []
        for block in self.blocks:
            masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
            if return_attention_scores:  # Blocks of other classes need not accept it.
                x, block_scores = block(x, return_attention_scores=True, training=training, **masks)
                scores.append(block_scores)
            elif self.remat:
                x = recomputed(block, training)(x, **masks)
            else:
                x = block(x, training=training, **masks)
        x = x if self.norm_layer is None else self.norm_layer(x, training=training)
        return (x, scores) if return_attention_scores else x

    def _keeps_shape(self) -> bool:
        return super()._keeps_shape() and stack_keeps_shape(self)

    def get_config(self) -> dict:
        return {**super().get_config(), **stack_config(self)}

    @classmethod
    def from_config(cls, config: dict) -> Self:
        return stack_from_config(cls, config)
