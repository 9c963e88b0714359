"""The decoder: a block, and a stack of blocks with the cache of decoding, section 3.1."""

from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_argument
from keras_transformer.layers.caches import DecoderBlockCache, DecoderCache, check_built
from keras_transformer.layers.composite_layer import quantize_parts
from keras_transformer.layers.encoder import EncoderBlock
from keras_transformer.layers.stack import Block, Stack, check_inputs, make_norm, recomputed
from keras_transformer.layers.tensors import Tensor, combine_masks, keys_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(Block):
    """Causal self-attention, attention to the encoder, and a feed-forward network.

    A block that is built without `encoder_outputs` has no cross-attention, for decoder-only models.

    Args:
        num_heads, intermediate_dim, key_dim, value_dim, dropout: As in `EncoderBlock`.
        attention_dropout, activation_dropout, activation, norm, use_bias: As in `EncoderBlock`.
        kernel_initializer, bias_initializer, kernel_regularizer: As in `keras.layers.Dense`.
        epsilon, position, sliding_window, flash_attention, seed: As in `EncoderBlock`.

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

    def build(self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None) -> None:
        name = "self_attention"
        self.self_attention = self._make_attention(name, inputs_shape)
        self.self_attention_norm = make_norm(self, f"{name}_norm", inputs_shape)
        self.self_attention_dropout = self._make_dropout(f"{name}_dropout", inputs_shape)
        self.cross_attention: Any = None
        if encoder_outputs_shape is not None:
            name, shapes = "cross_attention", (inputs_shape, encoder_outputs_shape)
            self.cross_attention = self._make_attention(name, *shapes)
            self.cross_attention_norm = make_norm(self, f"{name}_norm", inputs_shape)
            self.cross_attention_dropout = self._make_dropout(f"{name}_dropout", inputs_shape)
        self.feed_forward = self._make_feed_forward(inputs_shape)
        self.feed_forward_norm = make_norm(self, "feed_forward_norm", inputs_shape)
        self.feed_forward_dropout = self._make_dropout("feed_forward_dropout", inputs_shape)
        quantize_parts(self, self.quantized_parts)

    _check_inputs = staticmethod(check_inputs)

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

        cross_scores = None
        x = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        layers = attend_to_self, self.self_attention_norm, self.self_attention_dropout
        x, cache_or_scores = self._residual(x, layers, training)
        if self.cross_attention is not None:
            layers = attend_to_source, self.cross_attention_norm, self.cross_attention_dropout
            x, cross_scores = self._residual(x, layers, training)
        layers = self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout
        x, _ = self._residual(x, layers, training)
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
                computed here, once, without an implicit mask: pass `encoder_padding_mask` in each
                call. None for a block without cross-attention.
            batch_size: Number of hypotheses, a multiple of the batch of `encoder_outputs`; None
                for that batch.
            max_length: Number of positions of a cache of fixed size, for backends that compile
                fixed shapes: no more fit, and masks have as many columns. None for one that grows
                with each call.
        """
        check_built(self)
        if batch_size is None and encoder_outputs is not None:
            batch_size = ops.shape(encoder_outputs)[0]
        cache: Any = self.self_attention.make_cache(batch_size=batch_size, max_length=max_length)
        if self.cross_attention is None:
            return DecoderBlockCache(cache)
        rule = "the encoder's outputs, because the block has cross-attention"
        check_argument(encoder_outputs is not None, "encoder_outputs", rule, encoder_outputs)
        return DecoderBlockCache(cache, self.cross_attention.make_cache(encoder_outputs))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of decoder blocks over embedded tokens.

    Training calls the layer without a cache, decoding with one.

    Args:
        blocks: `DecoderBlock`s, or any layers that take their call arguments. A block that is in
            the list twice is applied twice.
        position, dropout, final_norm, epsilon, seed, remat, embedding_norm: As in `Encoder`.

    Call arguments:
        inputs: `[batch, length, d_model]`, embedded and scaled.
        encoder_outputs, padding_mask, encoder_padding_mask: As in `DecoderBlock`.
        attention_mask, encoder_attention_mask, use_causal_mask: As in `DecoderBlock`.
        positions: int32 `[length]` or `[batch, length]`, for the stack's `position`; None for 0 to
            length - 1, with a cache for the positions after the cached ones. Blocks with their own
            position always count so.
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

    def build(self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None) -> None:
        other_shapes = () if encoder_outputs_shape is None else (encoder_outputs_shape,)
        self._build_parts(inputs_shape, *other_shapes)

    _check_inputs = staticmethod(check_inputs)

    @staticmethod
    def _is_of_other_stack(block: Any) -> bool:
        return isinstance(block, EncoderBlock)

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
        x, scores, caches = self._embed(inputs, positions, training), [], []
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
