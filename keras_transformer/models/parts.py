"""Layers of a `Transformer`, made from its configuration."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    LearnedPositionEmbedding,
    RelativePosition,
    RotaryPosition,
    TiedEmbedding,
)
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import segment_mask, segment_positions
from keras_transformer.settings.transformer_config import TransformerConfig

# Settings that are arguments of the blocks.
_OF_BLOCKS = (
    *("num_heads", "intermediate_dim", "key_dim", "value_dim", "norm", "use_bias", "activation"),
    *("attention_dropout", "activation_dropout", "sliding_window", "flash_attention"),
)


class Parts(NamedTuple):
    """Layers of a `Transformer`; the target embedding is tied to the softmax."""

    source_embedding: TiedEmbedding
    target_embedding: TiedEmbedding
    encoder: Encoder
    decoder: Decoder

    def decoder_states(
        self,
        source: Tensor,
        target: Tensor,
        source_segments: Tensor | None = None,
        target_segments: Tensor | None = None,
    ) -> Tensor:
        """Returns the outputs of the decoder, `[batch, target_length, d_model]`, before the logits.

        With segments, a row holds several sentences in sequence. Positions start at 0 in each
        sentence, and no sentence attends to another.

        Args:
            source: int32 `[batch, source_length]`.
            target: int32 `[batch, target_length]`, every sentence beginning with BOS.
            source_segments: int32 `[batch, source_length]`: 1 for the first sentence of a row, 2
                for the second, and so on; 0 on padding. None for one sentence in each row.
            target_segments: int32 `[batch, target_length]`, in the same way.
        """
        source_mask = is_token(source, self.source_embedding)
        in_source, in_target = {}, {}
        if source_segments is not None:
            in_source = {
                "attention_mask": segment_mask(source_segments, source_segments),
                "positions": segment_positions(source_segments),
            }
            in_target = {
                "attention_mask": segment_mask(target_segments, target_segments),
                "encoder_attention_mask": segment_mask(target_segments, source_segments),
                "positions": segment_positions(target_segments),
            }
        encoder_outputs = self.encoder(
            self.source_embedding(source), padding_mask=source_mask, **in_source
        )
        return self.decoder(
            self.target_embedding(target),
            encoder_outputs,
            padding_mask=is_token(target, self.target_embedding),
            encoder_padding_mask=source_mask,
            **in_target,
        )


def make_parts(config: TransformerConfig, policy: keras.DTypePolicy) -> Parts:
    """Returns the layers of a configuration, under a dtype policy."""
    name = "embedding" if config.target_vocab_size is None else "target_embedding"
    embedding = TiedEmbedding(config.output_vocab_size, config.d_model, dtype=policy, name=name)
    source_embedding = embedding
    if config.target_vocab_size is not None:
        source_embedding = TiedEmbedding(
            config.vocab_size, config.d_model, dtype=policy, name="source_embedding"
        )
    encoder = _make_stack(Encoder, EncoderBlock, config.num_encoder_layers, config, policy)
    decoder = _make_stack(Decoder, DecoderBlock, config.num_decoder_layers, config, policy)
    return Parts(source_embedding, embedding, encoder, decoder)


def is_token(ids: Tensor, embedding: TiedEmbedding) -> Any:
    """Returns which ids are not padding."""
    return ops.not_equal(ids, embedding.padding_id)


def _make_stack(stack_class, block_class, num_layers, config, policy):
    options = {"dropout": config.dropout, "epsilon": config.norm_epsilon, "dtype": policy}
    of_blocks = {name: getattr(config, name) for name in _OF_BLOCKS}
    blocks = [
        block_class(
            **of_blocks,
            **options,
            position=_attention_position(config, policy),
            name=f"block_{index}",
        )
        for index in range(num_layers)
    ]
    position = config.position if config.position == "sinusoidal" else None
    if config.position == "learned":
        position = LearnedPositionEmbedding(config.max_length, dtype=policy, name="position")
    options |= {"remat": config.remat, "name": stack_class.__name__.lower()}
    return stack_class(blocks, position, **options)


def _attention_position(config, policy):
    """Returns the positions inside the self-attention of a block, or None."""
    if config.position == "relative":
        return RelativePosition(config.max_distance, dtype=policy, name="position")
    return RotaryPosition(dtype=policy, name="position") if config.position == "rotary" else None
