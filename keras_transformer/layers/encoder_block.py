"""One block of the encoder, section 3.1."""

import keras

from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import keys_mask
from keras_transformer.layers.residual_block import ResidualBlock


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(ResidualBlock):
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
        kernel_initializer, bias_initializer, kernel_regularizer: As in `keras.layers.Dense`, for
            all matrices and biases.
        epsilon: Added to the variance in the layer norms.
        position, sliding_window: As in `MultiHeadAttention`, for self-attention. Blocks that share
            a position share its weights.
        flash_attention: As in `MultiHeadAttention`.
        seed: Integer seed of the dropouts, or None.

    Call arguments:
        inputs: `[batch, length, d_model]`.
        padding_mask: bool `[batch, length]`, `True` = a real position.
        attention_mask: bool `[batch or 1, length, length]`, `True` = attend.
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

    _dropout_suffix = "_dropout_layer"  # `attention_dropout` is a rate.

    def build(self, inputs_shape: tuple) -> None:
        self.attention = self._make_attention("attention", inputs_shape, inputs_shape)
        self.feed_forward = self._make_feed_forward(inputs_shape)
        self._make_residual("attention", inputs_shape)
        self._make_residual("feed_forward", inputs_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        attention_mask = keys_mask(attention_mask, padding_mask, mask, inputs_mask)

        def attend(states):
            options = {"return_attention_scores": return_attention_scores}
            return self.attention(states, states, attention_mask=attention_mask, **options)

        outputs, scores = self._apply_residual(inputs, "attention", attend)
        outputs, _ = self._apply_residual(outputs, "feed_forward", self.feed_forward)
        return (outputs, scores) if return_attention_scores else outputs
