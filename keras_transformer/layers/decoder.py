"""The decoder: positions, dropout and a stack of blocks, with the cache of decoding."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.caches import DecoderCache
from keras_transformer.layers.checks import check_built
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import DecoderMasks, combine_masks
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of decoder blocks over embedded tokens.

    Training calls the layer without a cache, decoding with one.

    Args:
        blocks: The blocks, first to last: `DecoderBlock`s, or layers with their call arguments.
        position, dropout, final_norm, epsilon, seed, remat: As in `Encoder`.

    Call arguments:
        inputs: `[batch, length, d_model]`, embedded and scaled.
        encoder_outputs: `[batch, source_length, encoder_width]`; None for a decoder-only model,
            or with a cache.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1, or with a
            cache for the positions after the cached ones.
        padding_mask, encoder_padding_mask, attention_mask, encoder_attention_mask,
            use_causal_mask, cache, return_attention_scores, training: As in `DecoderBlock`.

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
        self._build_ends(inputs_shape)
        shapes = [shape for shape in (inputs_shape, encoder_outputs_shape) if shape is not None]
        for block in self.blocks:
            self._build_once(block, *shapes)

    def call(
        self,
        inputs: Tensor,
        encoder_outputs: Tensor | None = None,
        use_causal_mask: bool = True,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        encoder_outputs_mask: Tensor | None = None,
        **others: Tensor | DecoderCache | None,
    ) -> Tensor | tuple:
        positions, cache = others.pop("positions", None), others.pop("cache", None)
        masks = DecoderMasks(**others)
        memory = () if encoder_outputs is None else (encoder_outputs,)
        arguments = {
            "training": training,
            **masks._asdict(),
            "encoder_padding_mask": combine_masks(masks.encoder_padding_mask, encoder_outputs_mask),
        }
        # Custom blocks need not accept these two.
        if not use_causal_mask:
            arguments["use_causal_mask"] = False
        if return_attention_scores:
            arguments["return_attention_scores"] = True
        if cache is not None:
            length = ops.shape(inputs)[1]
            if positions is None:
                positions = cache.length + ops.arange(length, dtype="int32")
            options = {"positions": positions, "caches": cache.blocks}
            outputs, caches = self._apply(inputs, *memory, **options, **arguments)
            return outputs, DecoderCache(cache.length + length, tuple(caches))
        # An implicit mask does not cover cached positions.
        arguments["padding_mask"] = combine_masks(masks.padding_mask, mask, inputs_mask)
        outputs, scores = self._apply(inputs, *memory, positions=positions, **arguments)
        return (outputs, scores) if return_attention_scores else outputs

    def make_cache(
        self, encoder_outputs: Tensor | None = None, batch_size: Any = None, max_length: Any = None
    ) -> DecoderCache:
        """Returns a cache for the first call; the arguments are those of `DecoderBlock.make_cache`.

        Returns:
            A named tuple of `length`, the number of positions decoded, int32, and `blocks`, the
            caches of the blocks.
        """
        check_built(self)
        options = encoder_outputs, batch_size, max_length
        blocks = tuple(block.make_cache(*options) for block in self.blocks)
        return DecoderCache(ops.zeros((), dtype="int32"), blocks)

    def reorder_cache(self, cache: DecoderCache, rows: Tensor | None) -> DecoderCache:
        """Returns the cache whose row r is row `rows[r]` of `cache`, as a beam search asks for.

        The keys and values of the encoder's outputs are not reordered, because all rows of a
        sentence share them.

        Args:
            cache: From `make_cache` or `call`.
            rows: int32 `[rows]`, `rows[r]` of the same sentence as r; None for no change.
        """
        return cache.reorder(rows)
