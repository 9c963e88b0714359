"""One block of the decoder, section 3.1."""

from collections.abc import Callable
from typing import Any, Self

import keras
from keras import ops

from keras_transformer.layers.attention_position import AttentionPosition
from keras_transformer.layers.block_parts import (
    block_config,
    built_attention,
    built_dropout,
    built_feed_forward,
    built_norm,
    check_block,
)
from keras_transformer.layers.caches import DecoderBlockCache
from keras_transformer.layers.checks import check_argument, check_built
from keras_transformer.layers.composite_layer import CompositeLayer, quantize_parts
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import keys_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(CompositeLayer):
    """Causal self-attention, attention to the encoder, and a feed-forward network.

    A block that is built without `encoder_outputs` has no cross-attention, for decoder-only models.

    Args:
        num_heads: Number of attention heads.
        intermediate_dim: Width inside the feed-forward network.
        key_dim, value_dim, dropout, attention_dropout, activation_dropout: As in `EncoderBlock`.
        activation, norm, use_bias, epsilon, seed: As in `EncoderBlock`.
        kernel_initializer, bias_initializer, kernel_regularizer: As in `EncoderBlock`.
        position, sliding_window, flash_attention: As in `EncoderBlock`.

    Call arguments:
        inputs: `[batch, length, d_model]`.
        encoder_outputs: `[batch, source_length, encoder_width]`. None for a block without
            cross-attention. Not used with a cache, which holds the keys and values already.
        padding_mask: bool `[batch, length]`, `True` = a real position; with a cache `length`
            counts the cached positions as well.
        encoder_padding_mask: bool `[batch, source_length]`.
        attention_mask: bool `[batch or 1, length, length]`, on top of the causal mask; with a
            cache `[batch or 1, length, cached + length]`.
        encoder_attention_mask: bool `[batch or 1, length or 1, source_length]`.
        use_causal_mask: Whether a position may attend only to itself and to earlier ones.
        cache: From `make_cache` or an earlier call; `inputs` follow the cached positions.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to apply dropout.

    Returns:
        A tensor of the shape of `inputs`. With `return_attention_scores=True`, a tuple of this
        tensor and a dict of the weights, `"self"` `[batch, num_heads, length, length]` and, with
        cross-attention, `"cross"` `[batch, num_heads, length, source_length]`. With a cache, a
        tuple of this tensor and the new cache.

    Example:

    >>> block = keras_transformer.layers.DecoderBlock(num_heads=8, intermediate_dim=2048)
    >>> ops.shape(block(keras.random.normal((2, 5, 512)), keras.random.normal((2, 7, 512))))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.1 and figure 1.
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        *,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: str | Callable = "relu",
        norm: str = "post",
        use_bias: bool = False,
        kernel_initializer: str | Callable = "glorot_uniform",
        bias_initializer: str | Callable = "zeros",
        kernel_regularizer: str | Callable | None = None,
        epsilon: float = 1e-6,
        position: AttentionPosition | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.norm = norm
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.epsilon = epsilon
        self.position = position
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.seed = seed
        check_block(self)

    def build(self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None) -> None:
        self.self_attention = built_attention(
            self, "self_attention", inputs_shape, inputs_shape, self.position, self.sliding_window
        )
        self.self_attention_norm = built_norm(self, "self_attention_norm", inputs_shape)
        self.self_attention_dropout = built_dropout(self, "self_attention_dropout", inputs_shape)
        self.cross_attention = None
        if encoder_outputs_shape is not None:
            self.cross_attention = built_attention(
                self, "cross_attention", inputs_shape, encoder_outputs_shape
            )
            self.cross_attention_norm = built_norm(self, "cross_attention_norm", inputs_shape)
            self.cross_attention_dropout = built_dropout(
                self, "cross_attention_dropout", inputs_shape
            )
        self.feed_forward = built_feed_forward(self, inputs_shape)
        self.feed_forward_norm = built_norm(self, "feed_forward_norm", inputs_shape)
        self.feed_forward_dropout = built_dropout(self, "feed_forward_dropout", inputs_shape)
        quantize_parts(self, self.quantized_parts)

    def call(
        self,
        inputs: Tensor,
        encoder_outputs: Tensor | None = None,
        padding_mask: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_causal_mask: bool = True,
        cache: DecoderBlockCache | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        encoder_outputs_mask: Tensor | None = None,
    ) -> Tensor | tuple:
        self._check_call(encoder_outputs, cache)
        # An implicit mask does not cover the cached positions.
        implicit_masks = (mask, inputs_mask) if cache is None else ()
        self_mask = keys_mask(attention_mask, padding_mask, *implicit_masks)
        cross_mask = keys_mask(
            encoder_attention_mask, encoder_padding_mask, encoder_outputs_mask, prefix="encoder_"
        )
        is_pre_norm, returns_pair = self.norm == "pre", cache is not None or return_attention_scores

        residual = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        x = self.self_attention_norm(residual, training=training) if is_pre_norm else residual
        x = self.self_attention(
            x,
            x,
            attention_mask=self_mask,
            use_causal_mask=use_causal_mask,
            cache=None if cache is None else cache.self_attention,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        x, self_extra = x if returns_pair else (x, None)  # The new cache, or the scores.
        # Not `ops.add`: on TensorFlow it mistakes outputs of length 0 for a bias.
        x = residual + self.self_attention_dropout(x, training=training)
        x = x if is_pre_norm else self.self_attention_norm(x, training=training)

        cross_scores = None
        if self.cross_attention is not None:
            residual = x
            x = self.cross_attention_norm(x, training=training) if is_pre_norm else x
            x = self.cross_attention(
                x,
                encoder_outputs if cache is None else None,
                attention_mask=cross_mask,
                cache=None if cache is None else cache.cross_attention,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            x, cross_scores = x if returns_pair else (x, None)
            x = residual + self.cross_attention_dropout(x, training=training)
            x = x if is_pre_norm else self.cross_attention_norm(x, training=training)

        residual = x
        x = self.feed_forward_norm(x, training=training) if is_pre_norm else x
        x = self.feed_forward(x, training=training)
        x = residual + self.feed_forward_dropout(x, training=training)
        x = x if is_pre_norm else self.feed_forward_norm(x, training=training)
        if cache is not None:
            return x, cache._replace(self_attention=self_extra)  # type: ignore[arg-type]
        if return_attention_scores:
            scores = {"self": self_extra}
            return x, scores if self.cross_attention is None else {**scores, "cross": cross_scores}
        return x

    def _check_call(self, encoder_outputs, cache):
        if self.cross_attention is None and encoder_outputs is not None:
            raise ValueError(
                "This block was built without `encoder_outputs` and has no cross-attention. "
                f"Received: encoder_outputs of shape {tuple(encoder_outputs.shape)}"
            )
        if self.cross_attention is not None and encoder_outputs is None and cache is None:
            rule = "This block has cross-attention and needs `encoder_outputs` or a cache"
            raise ValueError(f"{rule}. Received: encoder_outputs=None, cache=None")

    def make_cache(
        self, encoder_outputs: Tensor | None = None, batch_size: Any = None, max_length: Any = None
    ) -> DecoderBlockCache:
        """Returns a cache for `call`.

        Args:
            encoder_outputs: `[batch, source_length, encoder_width]`, whose keys and values are
                computed here, once; None for a block without cross-attention.
            batch_size: Number of rows to decode, a multiple of the batch of `encoder_outputs`.
            max_length: As in `MultiHeadAttention.make_cache`.

        Returns:
            A named tuple of the attentions' caches, `self_attention` and `cross_attention`.

        Raises:
            ValueError: If a block with cross-attention gets no `encoder_outputs`.
        """
        check_built(self)
        own: Any = self.self_attention.make_cache(batch_size=batch_size, max_length=max_length)
        if self.cross_attention is None:
            return DecoderBlockCache(own)
        rule = "the encoder's outputs, because the block has cross-attention"
        check_argument(encoder_outputs is not None, "encoder_outputs", rule, encoder_outputs)
        return DecoderBlockCache(own, self.cross_attention.make_cache(encoder_outputs))

    def get_config(self) -> dict:
        return {**super().get_config(), **block_config(self)}

    @classmethod
    def from_config(cls, config: dict) -> Self:
        position = keras.saving.deserialize_keras_object(config.get("position"))
        return super().from_config({**config, "position": position})
