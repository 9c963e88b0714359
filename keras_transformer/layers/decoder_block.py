"""One block of the decoder, section 3.1."""

from typing import Any

import keras

from keras_transformer.layers.caches import DecoderBlockCache
from keras_transformer.layers.checks import check_argument, check_built
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import DecoderMasks, keys_mask
from keras_transformer.layers.residual_block import ResidualBlock


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(ResidualBlock):
    """Causal self-attention, attention to the encoder, and a feed-forward network.

    A block that is built without `encoder_outputs` has no cross-attention, for decoder-only models.

    Args:
        num_heads: Number of attention heads.
        intermediate_dim: Width inside the feed-forward network.
        key_dim, value_dim, dropout, norm, use_bias, seed: As in `EncoderBlock`.
        **options: Other arguments of `EncoderBlock`.

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

    def build(self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None) -> None:
        self.self_attention = self._make_attention("self_attention", inputs_shape, inputs_shape)
        self._make_residual("self_attention", inputs_shape)
        self.cross_attention = None
        if encoder_outputs_shape is not None:
            shapes = inputs_shape, encoder_outputs_shape
            self.cross_attention = self._make_attention("cross_attention", *shapes)
            self._make_residual("cross_attention", inputs_shape)
        self.feed_forward = self._make_feed_forward(inputs_shape)
        self._make_residual("feed_forward", inputs_shape)

    def call(
        self,
        inputs: Tensor,
        encoder_outputs: Tensor | None = None,
        use_causal_mask: bool = True,
        cache: DecoderBlockCache | None = None,
        return_attention_scores: bool = False,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        encoder_outputs_mask: Tensor | None = None,
        **masks: Tensor | None,
    ) -> Tensor | tuple:
        self._check_call(encoder_outputs, cache)
        masks = DecoderMasks(**masks)
        # An implicit mask does not cover the cached positions.
        implicit_masks = (mask, inputs_mask) if cache is None else ()
        self_mask = keys_mask(masks.attention_mask, masks.padding_mask, *implicit_masks)
        cross_masks = masks.encoder_padding_mask, encoder_outputs_mask
        cross_mask = keys_mask(masks.encoder_attention_mask, *cross_masks, prefix="encoder_")
        scores = {"return_attention_scores": return_attention_scores}

        def attend_to_itself(states):
            own = None if cache is None else cache.self_attention
            options = {"use_causal_mask": use_causal_mask, "cache": own, **scores}
            return self.self_attention(states, states, attention_mask=self_mask, **options)

        def attend_to_the_encoder(states):
            value, own = (encoder_outputs, None) if cache is None else (None, cache.cross_attention)
            return self.cross_attention(
                states, value, attention_mask=cross_mask, cache=own, **scores
            )

        outputs, own = self._apply_residual(inputs, "self_attention", attend_to_itself)
        cross = None
        if self.cross_attention is not None:
            outputs, cross = self._apply_residual(outputs, "cross_attention", attend_to_the_encoder)
        outputs, _ = self._apply_residual(outputs, "feed_forward", self.feed_forward)
        if cache is not None:
            return outputs, cache._replace(self_attention=own)
        if return_attention_scores:
            return outputs, {"self": own} if cross is None else {"self": own, "cross": cross}
        return outputs

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
        own = self.self_attention.make_cache(batch_size=batch_size, max_length=max_length)
        if self.cross_attention is None:
            return DecoderBlockCache(own)
        rule = "the encoder's outputs, because the block has cross-attention"
        check_argument(encoder_outputs is not None, "encoder_outputs", rule, encoder_outputs)
        return DecoderBlockCache(own, self.cross_attention.make_cache(encoder_outputs))
