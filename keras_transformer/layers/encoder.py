"""The encoder: positions, dropout and a stack of blocks."""

import keras

from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
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

    def build(self, inputs_shape: tuple) -> None:
        self._build_ends(inputs_shape)
        for block in self.blocks:
            self._build_once(block, inputs_shape)

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
        arguments = {
            "padding_mask": combine_masks(padding_mask, mask, inputs_mask),
            "attention_mask": attention_mask,
        }
        if return_attention_scores:  # Custom blocks need not accept it.
            arguments["return_attention_scores"] = True
        options = {"positions": positions, "training": training}
        outputs, scores = self._apply(inputs, **options, **arguments)
        return (outputs, scores) if return_attention_scores else outputs
