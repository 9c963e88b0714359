"""The decoder: positions, dropout and a stack of blocks, with the cache of decoding."""

import keras
from keras import ops

from keras_transformer.layers.checks import check_built
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of decoder blocks over embedded tokens.

    The same call serves training, without a cache, and decoding, with one.

    Args:
        blocks: The blocks, first to last: `DecoderBlock`s, or layers with their call arguments. A
            block that stands in the list several times is applied several times with the same
            weights.
        position: `"sinusoidal"`, a layer that adds positions to `[batch, length, d_model]` (and
            takes `positions=`), or None.
        dropout: Dropout rate of the sum of embedding and position.
        final_norm: Whether a layer norm follows the last block; None for yes if that block is
            pre-norm.
        epsilon: Added to the variance in the final norm.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        inputs: `[batch, length, d_model]`, embedded and scaled.
        encoder_outputs: `[batch, source_length, encoder_width]`; None for a decoder-only model,
            or with a cache.
        padding_mask: bool `[batch, length]`, `True` = a real position; with a cache `length`
            counts the cached positions as well.
        encoder_padding_mask: bool `[batch, source_length]`.
        attention_mask: bool `[batch or 1, length, length]`, on top of the causal mask; with a
            cache `[batch or 1, length, cached + length]`.
        encoder_attention_mask: bool `[batch or 1, length or 1, source_length]`.
        positions: int32 `[length]` or `[batch, length]`; None for those that follow the cache.
        use_causal_mask: Whether a position may attend only to itself and to earlier ones; False
            leaves it all to `attention_mask`.
        cache: From `make_cache` or an earlier call: `inputs` are the positions that follow it.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to drop.

    Returns:
        `[batch, length, d_model]`; with `return_attention_scores=True` a tuple of that and a list
        of the weights of each block, dicts of `"self"` and `"cross"`; with a cache a tuple of
        that and the new cache.

    Example:

    >>> from keras_transformer.layers import Decoder, DecoderBlock
    >>> decoder = Decoder([DecoderBlock(num_heads=8, intermediate_dim=2048) for _ in range(6)])
    >>> ops.shape(decoder(keras.random.normal((2, 5, 512)), keras.random.normal((2, 7, 512))))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.1.
    """

    def build(self, inputs_shape, encoder_outputs_shape=None):
        self._build_ends(inputs_shape)
        for block in self.blocks:
            if encoder_outputs_shape is None:
                self._build_once(block, inputs_shape)
            else:
                self._build_once(block, inputs_shape, encoder_outputs_shape)
        self.built = True

    def call(
        self,
        inputs,
        encoder_outputs=None,
        padding_mask=None,
        encoder_padding_mask=None,
        attention_mask=None,
        encoder_attention_mask=None,
        positions=None,
        use_causal_mask=True,
        cache=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        inputs_mask=None,
        encoder_outputs_mask=None,
    ):
        if cache is None:  # An implicit mask knows nothing of cached positions.
            padding_mask = combine_masks(padding_mask, mask, inputs_mask)
        arguments = {
            "encoder_outputs": encoder_outputs,
            "padding_mask": padding_mask,
            "encoder_padding_mask": combine_masks(encoder_padding_mask, encoder_outputs_mask),
            "attention_mask": attention_mask,
            "encoder_attention_mask": encoder_attention_mask,
            "training": training,
        }
        if not use_causal_mask:  # Blocks of another origin need not know of it.
            arguments["use_causal_mask"] = False
        if cache is not None and positions is None:
            positions = cache["length"] + ops.arange(ops.shape(inputs)[1], dtype="int32")
        outputs = self._begin(inputs, positions, training)
        if cache is not None:
            block_caches = []
            for block, block_cache in zip(self.blocks, cache["blocks"], strict=True):
                outputs, block_cache = block(outputs, cache=block_cache, **arguments)
                block_caches.append(block_cache)
            length = cache["length"] + ops.shape(inputs)[1]
            return self._end(outputs), {"length": length, "blocks": block_caches}
        if return_attention_scores:
            scores = []
            for block in self.blocks:
                outputs, block_scores = block(outputs, return_attention_scores=True, **arguments)
                scores.append(block_scores)
            return self._end(outputs), scores
        for block in self.blocks:
            outputs = block(outputs, **arguments)
        return self._end(outputs)

    def make_cache(self, encoder_outputs=None, batch_size=None, max_length=None):
        """Return an empty cache for `call`; the arguments are those of `DecoderBlock.make_cache`.

        Returns:
            A dict: `"length"`, the number of positions decoded, int32, and `"blocks"`, the list
            of the caches of the blocks.
        """
        check_built(self)
        blocks = [
            block.make_cache(encoder_outputs, batch_size, max_length) for block in self.blocks
        ]
        return {"length": ops.zeros((), dtype="int32"), "blocks": blocks}

    def reorder_cache(self, cache, rows):
        """Return the cache whose row r is row `rows[r]` of `cache`, as a beam search asks for.

        The keys and values of the encoder's outputs stay as they are: the rows of a sentence share
        them.

        Args:
            cache: From `make_cache` or `call`.
            rows: int32 `[rows]`, rows of the same sentence; None for no change.

        Returns:
            A cache.
        """
        if rows is None:
            return cache

        def reorder(block):
            return {
                # An index that counts positions is a scalar and the same for all rows.
                name: ops.take(value, rows, axis=0) if len(value.shape) else value
                for name, value in block["self"].items()
            }

        blocks = [{**block, "self": reorder(block)} for block in cache["blocks"]]
        return {**cache, "blocks": blocks}

    def compute_output_shape(self, inputs_shape, encoder_outputs_shape=None):
        return inputs_shape
