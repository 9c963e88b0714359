"""The encoder: a block, and a stack of blocks over embedded tokens, section 3.1."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.composite_layer import quantize_parts
from keras_transformer.layers.stack import Block, Stack, check_encoder_inputs, make_norm, recomputed
from keras_transformer.layers.tensors import Tensor, combine_masks, keys_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(Block):
    """Self-attention and a feed-forward network, each with a residual connection and a norm.

    Args:
        num_heads: Number of attention heads.
        intermediate_dim: Width inside the feed-forward network.
        key_dim: Size of the queries and keys of a head; None for width / num_heads.
        value_dim: Size of the values of a head; None for width / num_heads.
        dropout: Dropout rate of the output of each sub-layer.
        attention_dropout: Dropout rate of the attention weights; 0 in the paper.
        activation_dropout: Dropout rate inside the feed-forward network; 0 in the paper.
        activation: Activation of the feed-forward network, as in `keras.layers.Dense`.
        norm: `"post"`, LayerNorm(x + f(x)), as in the paper; or `"pre"`, x + f(LayerNorm(x)), as
            in later versions of tensor2tensor. Pre-norm needs a norm after the last block.
        use_bias: Whether the attention projections have biases; the feed-forward network has them.
        kernel_initializer, bias_initializer, kernel_regularizer: As in `keras.layers.Dense`.
        epsilon: Added to the variance in the layer norms.
        position: `AttentionPosition` of the self-attention, such as `RotaryPosition`, or None.
            Blocks of one stack that share a position share its weights.
        sliding_window: Query i of the self-attention attends only to the keys j with
            `|i - j| < sliding_window`, in linear time and memory; None for all keys.
        flash_attention: Whether to compute attention without the matrix of all scores, as in
            `ScaledDotProductAttention`; None follows `keras.config`.
        seed: Integer seed of the dropouts, or None.

    Call arguments:
        inputs: `[batch, length, d_model]`.
        padding_mask: bool `[batch, length]`, `True` = a real position.
        attention_mask: bool `[batch or 1, length or 1, length]`, `True` = attend.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to apply dropout.

    Returns:
        A tensor of the shape of `inputs`. With `return_attention_scores=True`, a tuple of this
        tensor and the attention weights, in the shape that `MultiHeadAttention` returns.

    Example:

    >>> block = keras_transformer.layers.EncoderBlock(num_heads=8, intermediate_dim=2048)
    >>> ops.shape(block(keras.random.normal((2, 5, 512))))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.1 and figure 1.
    """

    def build(self, inputs_shape: tuple) -> None:
        self.attention = self._make_attention("attention", inputs_shape)
        self.feed_forward = self._make_feed_forward(inputs_shape)
        self.attention_norm = make_norm(self, "attention_norm", inputs_shape)
        # `attention_dropout` is a rate.
        self.attention_dropout_layer = self._make_dropout("attention_dropout", inputs_shape)
        self.feed_forward_norm = make_norm(self, "feed_forward_norm", inputs_shape)
        self.feed_forward_dropout_layer = self._make_dropout("feed_forward_dropout", inputs_shape)
        quantize_parts(self, self.quantized_parts)

    _check_inputs = staticmethod(check_encoder_inputs)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        attention_mask = keys_mask(attention_mask, padding_mask, mask, inputs_mask)

        def attend(x, training):
            options = {"return_attention_scores": return_attention_scores, "training": training}
            return self.attention(x, x, attention_mask=attention_mask, **options)

        x = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        layers = attend, self.attention_norm, self.attention_dropout_layer
        x, scores = self._residual(x, layers, training)
        layers = self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout_layer
        x, _ = self._residual(x, layers, training)
        return (x, scores) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """A stack of encoder blocks over embedded tokens.

    Args:
        blocks: `EncoderBlock`s, or any layers that take `(inputs, padding_mask=...,
            attention_mask=...)`. A block that is in the list twice is applied twice.
        position: `"sinusoidal"`, a layer that adds positions to `[batch, length, d_model]` (and
            takes `positions=`), or None. `"auto"` is None if a block has a `position` of its own,
            and `"sinusoidal"` otherwise.
        dropout: Dropout rate of the sum of embedding and position.
        final_norm: Whether a layer norm follows the last block; None adds one to pre-norm blocks.
        epsilon: Added to the variance in the norms of the stack.
        seed: Integer seed of the dropout, or None.
        remat: Whether the gradient recomputes the blocks (`keras.remat`) to save memory.
        embedding_norm: Whether a layer norm follows the sum of embedding and position, as in mBART.

    Call arguments:
        inputs: `[batch, length, d_model]`, embedded and scaled.
        padding_mask: bool `[batch, length]`, `True` = a real position.
        attention_mask: bool `[batch or 1, length or 1, length]`, `True` = attend.
        positions: int32 `[length]` or `[batch, length]`, for the stack's `position`; None for 0 to
            length - 1. Blocks with their own position always count from 0.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to apply dropout.

    Returns:
        `[batch, length, d_model]`. With `return_attention_scores=True`, a tuple of this tensor and
        a list of attention weights, one entry for each block.

    Example:

    >>> from keras_transformer.layers import Encoder, EncoderBlock
    >>> encoder = Encoder([EncoderBlock(num_heads=8, intermediate_dim=2048) for _ in range(6)])
    >>> outputs = encoder(keras.random.normal((2, 5, 512)))

    Reference: Vaswani et al. (2017), section 3.1.
    """

    def build(self, inputs_shape: tuple) -> None:
        self._build_parts(inputs_shape)

    _check_inputs = staticmethod(check_encoder_inputs)

    @staticmethod
    def _is_of_other_stack(block: Any) -> bool:
        return hasattr(block, "make_cache")

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
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        x, scores = self._embed(inputs, positions, training), []
        for block in self.blocks:
            if return_attention_scores:  # Blocks of other classes need not accept it.
                x, block_scores = block(x, return_attention_scores=True, training=training, **masks)
                scores.append(block_scores)
            elif self.remat:
                x = recomputed(block, training)(x, **masks)
            else:
                x = block(x, training=training, **masks)
        x = x if self.norm_layer is None else self.norm_layer(x, training=training)
        return (x, scores) if return_attention_scores else x
