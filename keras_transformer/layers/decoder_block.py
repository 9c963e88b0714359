"""A block of the decoder: two attentions and a feed-forward network, section 3.1."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_argument
from keras_transformer.layers import stack
from keras_transformer.layers.attention_position import AttentionPosition, check_position
from keras_transformer.layers.caches import DecoderBlockCache, check_built
from keras_transformer.layers.composite_layer import (
    CompositeLayer,
    check_arguments,
    quantize_parts,
)
from keras_transformer.layers.tensors import Tensor, keys_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(CompositeLayer):
    """Causal self-attention, attention to the encoder, and a feed-forward network.

    A block that is built without `encoder_outputs` has no cross-attention, for decoder-only models.

    Args:
        num_heads, intermediate_dim, key_dim, value_dim, dropout: As in `EncoderBlock`.
        attention_dropout, activation_dropout, activation, norm, use_bias: As in `EncoderBlock`.
        kernel_initializer, bias_initializer, kernel_regularizer: As in `keras.layers.Dense`.
        epsilon, flash_attention, seed: As in `EncoderBlock`.
        position: `AttentionPosition` of the self-attention, such as `RotaryPosition`, or None.
            Blocks that share a position share its weights.
        sliding_window: Query i of the self-attention attends only to the keys j with
            `|i - j| < sliding_window`, in linear time and memory; None for all keys.

    Call arguments:
        inputs: `[batch, length, d_model]`.
        encoder_outputs: `[batch, source_length, encoder_width]`. None for a block without
            cross-attention, or with a cache, which holds their keys and values.
        padding_mask: bool `[batch, keys]`, `True` = a real position. The keys are the cached
            positions and those of `inputs`.
        encoder_padding_mask: bool `[batch, source_length]`.
        attention_mask: bool `[batch or 1, length or 1, keys]`, on top of the causal mask.
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
        check_arguments(self, DecoderBlock)
        check_position(position)

    def build(self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None) -> None:
        name = "self_attention"
        self.self_attention = stack.make_attention(self, name, inputs_shape)
        self.self_attention_norm = stack.make_norm(self, f"{name}_norm", inputs_shape)
        self.self_attention_dropout = stack.make_dropout(self, f"{name}_dropout", inputs_shape)
        self.cross_attention: Any = None
        if encoder_outputs_shape is not None:
            name, shapes = "cross_attention", (inputs_shape, encoder_outputs_shape)
            self.cross_attention = stack.make_attention(self, name, *shapes)
            self.cross_attention_norm = stack.make_norm(self, f"{name}_norm", inputs_shape)
            self.cross_attention_dropout = stack.make_dropout(self, f"{name}_dropout", inputs_shape)
        self.feed_forward = stack.make_feed_forward(self, inputs_shape)
        self.feed_forward_norm = stack.make_norm(self, "feed_forward_norm", inputs_shape)
        self.feed_forward_dropout = stack.make_dropout(self, "feed_forward_dropout", inputs_shape)
        quantize_parts(self, self.quantized_parts)

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
        cache: DecoderBlockCache | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        encoder_outputs_mask: Tensor | None = None,
    ) -> Tensor | tuple:
        self._check_cross_attention(encoder_outputs, cache)
        # An implicit mask does not cover the cached positions.
        implicit_masks = (mask, inputs_mask) if cache is None else ()
        self_mask = keys_mask(attention_mask, padding_mask, *implicit_masks)
        padding_masks = encoder_padding_mask, encoder_outputs_mask
        cross_mask = keys_mask(encoder_attention_mask, *padding_masks)

        def attend_to_self(x, training):
            return self.self_attention(
                x,
                x,
                attention_mask=self_mask,
                use_causal_mask=use_causal_mask,
                cache=None if cache is None else cache.self_attention,
                return_attention_scores=return_attention_scores,
                training=training,
            )

        def attend_to_source(x, training):
            if cache is not None:
                return self.cross_attention.attend_to_cache(x, cache.cross_attention, cross_mask)
            options = {"return_attention_scores": return_attention_scores, "training": training}
            return self.cross_attention(x, encoder_outputs, attention_mask=cross_mask, **options)

        is_pre_norm, cross_scores = self.norm == "pre", None
        residual = functools.partial(stack.residual, is_pre_norm=is_pre_norm, training=training)
        x = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        layers = attend_to_self, self.self_attention_norm, self.self_attention_dropout
        x, cache_or_scores = residual(x, *layers)
        if self.cross_attention is not None:
            layers = attend_to_source, self.cross_attention_norm, self.cross_attention_dropout
            x, cross_scores = residual(x, *layers)
        layers = self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout
        x, _ = residual(x, *layers)
        if cache is not None:
            return x, cache._replace(self_attention=cache_or_scores)  # type: ignore[arg-type]
        if return_attention_scores:
            scores = {"self": cache_or_scores}
            return x, scores if self.cross_attention is None else {**scores, "cross": cross_scores}
        return x

    def _check_cross_attention(self, encoder_outputs, cache):
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
            batch_size: Number of hypotheses, a multiple of the batch of `encoder_outputs`.
            max_length: Number of positions of a cache of fixed size, for backends that compile
                fixed shapes; None for one that grows with each call.
        """
        check_built(self)
        cache: Any = self.self_attention.make_cache(batch_size=batch_size, max_length=max_length)
        if self.cross_attention is None:
            return DecoderBlockCache(cache)
        rule = "the encoder's outputs, because the block has cross-attention"
        check_argument(encoder_outputs is not None, "encoder_outputs", rule, encoder_outputs)
        return DecoderBlockCache(cache, self.cross_attention.make_cache(encoder_outputs))

    def get_config(self) -> dict:
        return {**super().get_config(), **stack.block_config(self)}
