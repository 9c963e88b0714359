"""One block of the decoder, section 3.1."""

import keras

from keras_transformer.layers.checks import check_built, check_rank
from keras_transformer.layers.masks import combine_masks, padding_to_attention_mask
from keras_transformer.layers.residual_block import ResidualBlock


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(ResidualBlock):
    """Causal self-attention, attention to the encoder, and a feed-forward network.

    Built without `encoder_outputs` it has no cross-attention, as decoder-only models need.

    Args:
        num_heads: Number of attention heads.
        intermediate_dim: Width inside the feed-forward network.
        key_dim: Size of the queries and keys of a head; None for width / num_heads.
        value_dim: Size of the values of a head; None for width / num_heads.
        dropout: Dropout rate of the output of each sub-layer.
        attention_dropout: Dropout rate of the attention weights; 0 in the paper.
        activation_dropout: Dropout rate inside the feed-forward network; 0 in the paper.
        activation: Activation of the feed-forward network, as in `keras.layers.Dense`.
        norm: `"post"` as in the paper, or `"pre"`; see `EncoderBlock`.
        use_bias: Whether the attention projections have biases; the feed-forward network has.
        kernel_initializer: Initialiser of all matrices.
        bias_initializer: Initialiser of all biases.
        kernel_regularizer: Regulariser of all matrices.
        epsilon: Added to the variance in the layer norms.
        seed: Integer seed of the dropouts, or None.

    Call arguments:
        inputs: `[batch, length, d_model]`.
        encoder_outputs: `[batch, source_length, encoder_width]`, or None: no cross-attention, or
            with a cache the one that the cache was made from.
        padding_mask: bool `[batch, length]`, `True` = a real position; with a cache `length`
            counts the cached positions as well.
        encoder_padding_mask: bool `[batch, source_length]`.
        attention_mask: bool `[batch or 1, length, length]`, on top of the causal mask; with a
            cache `[batch or 1, length, cached + length]`.
        encoder_attention_mask: bool `[batch or 1, length or 1, source_length]`.
        use_causal_mask: Whether a position may attend only to itself and to earlier ones.
        cache: From `make_cache` or an earlier call: `inputs` are the positions that follow it.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to drop.

    Returns:
        A tensor of the shape of `inputs`; with `return_attention_scores=True` a tuple of that and
        a dict of the weights, `"self"` `[batch, num_heads, length, length]` and `"cross"`
        `[batch, num_heads, length, source_length]`; with a cache a tuple of that and the new
        cache.

    Example:

    >>> block = keras_transformer.layers.DecoderBlock(num_heads=8, intermediate_dim=2048)
    >>> ops.shape(block(keras.random.normal((2, 5, 512)), keras.random.normal((2, 7, 512))))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.1 and figure 1.
    """

    def build(self, inputs_shape, encoder_outputs_shape=None):
        d_model = inputs_shape[-1]
        self.self_attention = self._make_attention("self_attention", d_model)
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_norm, self.self_attention_dropout = self._make_residual(
            "self_attention", inputs_shape
        )
        self.cross_attention = None
        if encoder_outputs_shape is not None:
            self.cross_attention = self._make_attention("cross_attention", d_model)
            self.cross_attention.build(inputs_shape, encoder_outputs_shape)
            self.cross_attention_norm, self.cross_attention_dropout = self._make_residual(
                "cross_attention", inputs_shape
            )
        self.feed_forward = self._make_feed_forward()
        self.feed_forward.build(inputs_shape)
        self.feed_forward_norm, self.feed_forward_dropout = self._make_residual(
            "feed_forward", inputs_shape
        )
        self.built = True

    def call(
        self,
        inputs,
        encoder_outputs=None,
        padding_mask=None,
        encoder_padding_mask=None,
        attention_mask=None,
        encoder_attention_mask=None,
        use_causal_mask=True,
        cache=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        inputs_mask=None,
        encoder_outputs_mask=None,
    ):
        self._check_call(encoder_outputs, cache, return_attention_scores)
        _check_masks("", attention_mask, padding_mask)
        _check_masks("encoder_", encoder_attention_mask, encoder_padding_mask)
        if cache is None:  # An implicit mask knows nothing of cached positions.
            padding_mask = combine_masks(padding_mask, mask, inputs_mask)
        self_mask = combine_masks(attention_mask, padding_to_attention_mask(padding_mask))
        source_mask = combine_masks(encoder_padding_mask, encoder_outputs_mask)
        cross_mask = combine_masks(encoder_attention_mask, padding_to_attention_mask(source_mask))
        has_extra = cache is not None or return_attention_scores

        def attend(layer, states, value, cache, attention_mask, use_causal_mask=False):
            outputs = layer(
                states,
                value,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                cache=cache,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            return outputs if has_extra else (outputs, None)

        extra = {}
        outputs, extra["self"] = self._apply_residual(
            inputs,
            lambda states: attend(
                self.self_attention,
                states,
                states,
                cache and cache["self"],
                self_mask,
                use_causal_mask,
            ),
            self.self_attention_norm,
            self.self_attention_dropout,
            training,
        )
        if self.cross_attention is not None:
            value = encoder_outputs if cache is None else None
            outputs, extra["cross"] = self._apply_residual(
                outputs,
                lambda states: attend(
                    self.cross_attention, states, value, cache and cache["cross"], cross_mask
                ),
                self.cross_attention_norm,
                self.cross_attention_dropout,
                training,
            )
        outputs, _ = self._apply_residual(
            outputs,
            lambda states: (self.feed_forward(states, training=training), None),
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training,
        )
        return (outputs, extra) if has_extra else outputs

    def _check_call(self, encoder_outputs, cache, return_attention_scores):
        if cache is not None and return_attention_scores:
            raise ValueError(
                "A call returns the attention scores or a cache, not both. Received: "
                f"return_attention_scores={return_attention_scores!r} and a cache"
            )
        if self.cross_attention is None and encoder_outputs is not None:
            raise ValueError(
                "This block was built without `encoder_outputs` and has no cross-attention. "
                f"Received: encoder_outputs of shape {tuple(encoder_outputs.shape)}"
            )
        if self.cross_attention is not None and encoder_outputs is None and cache is None:
            raise ValueError(
                "This block has cross-attention and needs `encoder_outputs` or a cache. "
                "Received: encoder_outputs=None, cache=None"
            )

    def make_cache(self, encoder_outputs=None, batch_size=None, max_length=None):
        """Return a cache for `call`.

        Args:
            encoder_outputs: `[batch, source_length, encoder_width]`, whose keys and values are
                computed here, once; None for a block without cross-attention.
            batch_size: Number of rows to decode, a multiple of that of `encoder_outputs`.
            max_length: As in `MultiHeadAttention.make_cache`.

        Returns:
            A dict of the caches of the attentions, `"self"` and `"cross"`.
        """
        check_built(self)
        cache = {
            "self": self.self_attention.make_cache(batch_size=batch_size, max_length=max_length)
        }
        if self.cross_attention is not None:
            cache["cross"] = self.cross_attention.make_cache(encoder_outputs)
        return cache

    def compute_output_spec(self, *args, **kwargs):
        # Traced, since the form of the output depends on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, inputs_shape, encoder_outputs_shape=None):
        return inputs_shape


def _check_masks(prefix, attention_mask, padding_mask):
    """Check the ranks of the masks of an attention, whose names begin with `prefix`."""
    key_length = "source_length" if prefix else "length"
    check_rank(f"{prefix}padding_mask", padding_mask, f"[batch, {key_length}]")
    check_rank(f"{prefix}attention_mask", attention_mask, f"[batch, length, {key_length}]")
