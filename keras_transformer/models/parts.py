"""The layers of a `Transformer`, made as its configuration says."""

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    LearnedPositionEmbedding,
    TiedEmbedding,
)


def make_embeddings(config, policy):
    """Return the target embedding, tied to the softmax, and the source embedding."""
    name = "embedding" if config.target_vocab_size is None else "target_embedding"
    embedding = TiedEmbedding(config.output_vocab_size, config.d_model, dtype=policy, name=name)
    if config.target_vocab_size is None:
        return embedding, embedding
    source_embedding = TiedEmbedding(
        config.vocab_size, config.d_model, dtype=policy, name="source_embedding"
    )
    return embedding, source_embedding


def make_encoder(config, policy):
    """Return the encoder of a `TransformerConfig`, under a dtype policy."""
    blocks = _make_blocks(EncoderBlock, config.num_encoder_layers, config, policy)
    return Encoder(blocks, **_stack_options(config, policy), name="encoder")


def make_decoder(config, policy):
    """Return the decoder of a `TransformerConfig`, under a dtype policy."""
    blocks = _make_blocks(DecoderBlock, config.num_decoder_layers, config, policy)
    return Decoder(blocks, **_stack_options(config, policy), name="decoder")


def _stack_options(config, policy):
    return {
        "position": _make_position(config, policy),
        "dropout": config.dropout,
        "epsilon": config.norm_epsilon,
        "dtype": policy,
    }


def _make_blocks(block_class, number, config, policy):
    return [
        block_class(
            num_heads=config.num_heads,
            intermediate_dim=config.intermediate_dim,
            key_dim=config.key_dim,
            value_dim=config.value_dim,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            activation=config.activation,
            norm=config.norm,
            use_bias=config.use_bias,
            epsilon=config.norm_epsilon,
            dtype=policy,
            name=f"block_{index}",
        )
        for index in range(number)
    ]


def _make_position(config, policy):
    if config.position == "learned":
        return LearnedPositionEmbedding(config.max_length, dtype=policy, name="position")
    return "sinusoidal"
