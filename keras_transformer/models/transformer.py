"""The encoder-decoder of the paper as a functional Keras model."""

import keras
from keras import ops

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    LearnedPositionEmbedding,
    TiedEmbedding,
)
from keras_transformer.layers.composite_layer import set_trainable_parts, trainable_parts
from keras_transformer.models.micro_batches import MicroBatchModel
from keras_transformer.models.presets import get_preset
from keras_transformer.models.transformer_config import TransformerConfig

_PADDING_ID = 0


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(MicroBatchModel):
    """The Transformer: token ids of source and target to logits of the next target token.

    A functional model, for `compile` and `fit`, with the methods that decoding needs. Id 0 is
    padding on both sides.

    Args:
        config: A `TransformerConfig`.
        dtype: Dtype policy of all layers, such as `"mixed_bfloat16"`; None for the global one.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `"source"`, int32 `[batch, source_length]`, and `"target"`, int32
            `[batch, target_length]`, the target beginning with BOS.

    Returns:
        Logits `[batch, target_length, target vocabulary]` in at least float32.

    Example:

    >>> model = keras_transformer.models.Transformer.from_preset("tiny", vocab_size=1000)
    >>> ids = keras.ops.array([[5, 6, 3]])
    >>> ops.shape(model({"source": ids, "target": ids}))
    (1, 3, 1000)

    Reference: Vaswani et al. (2017), section 3 and figure 1.
    """

    def __init__(self, config, dtype=None, name="transformer"):
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        embedding, source_embedding = _make_embeddings(config, policy)
        encoder = Encoder(
            _make_blocks(EncoderBlock, config.num_encoder_layers, config, policy),
            position=_make_position(config, policy),
            dropout=config.dropout,
            epsilon=config.norm_epsilon,
            dtype=policy,
            name="encoder",
        )
        decoder = Decoder(
            _make_blocks(DecoderBlock, config.num_decoder_layers, config, policy),
            position=_make_position(config, policy),
            dropout=config.dropout,
            epsilon=config.norm_epsilon,
            dtype=policy,
            name="decoder",
        )
        source = keras.Input((None,), dtype="int32", name="source")
        target = keras.Input((None,), dtype="int32", name="target")
        source_mask = ops.not_equal(source, _PADDING_ID)
        encoder_outputs = encoder(source_embedding(source), padding_mask=source_mask)
        states = decoder(
            embedding(target),
            encoder_outputs,
            padding_mask=ops.not_equal(target, _PADDING_ID),
            encoder_padding_mask=source_mask,
        )
        logits = embedding(states, reverse=True)
        super().__init__({"source": source, "target": target}, logits, name=name)
        self.config = config
        self.policy = policy
        self.source_embedding = source_embedding
        self.target_embedding = embedding
        self.encoder = encoder
        self.decoder = decoder

    @classmethod
    def from_preset(cls, name, vocab_size, target_vocab_size=None, dtype=None, **overrides):
        """Return a new model of a preset, with random weights.

        Args:
            name: One of `list_presets()`.
            vocab_size: As in `TransformerConfig`.
            target_vocab_size: As in `TransformerConfig`.
            dtype: Dtype policy; None for the global one.
            **overrides: Other fields of `TransformerConfig`.

        Raises:
            ValueError: If there is no such preset, or an override is not allowed.

        Example:

        >>> model = keras_transformer.models.Transformer.from_preset("base", vocab_size=37000)
        >>> model.count_params()
        63045632
        """
        values = {"vocab_size": vocab_size, "target_vocab_size": target_vocab_size}
        values.update(get_preset(name).config)
        values.update(overrides)
        return cls(TransformerConfig.from_dict(values), dtype=dtype)

    def encode(self, source, training=None):
        """Return the encoder's outputs `[batch, source_length, d_model]` and the padding mask.

        Args:
            source: int32 `[batch, source_length]`.
            training: Whether to drop.
        """
        padding_mask = ops.not_equal(source, _PADDING_ID)
        outputs = self.encoder(
            self.source_embedding(source), padding_mask=padding_mask, training=training
        )
        return outputs, padding_mask

    def start_decoding(self, source, width=1, max_length=None):
        """Encode the source once and return the state that `decode_step` begins with.

        Args:
            source: int32 `[batch, source_length]`.
            width: Rows of each sentence, such as its beams.
            max_length: Longest target. Needed on JAX, whose caches have a fixed size; elsewhere
                they grow as decoding goes on.

        Returns:
            A nest of tensors for `batch * width` rows, sentence-major.
        """
        encoder_outputs, padding_mask = self.encode(source, training=False)
        cache = self.decoder.make_cache(
            encoder_outputs,
            batch_size=ops.shape(source)[0] * width,
            max_length=max_length if keras.backend.backend() == "jax" else None,
        )
        return {"cache": cache, "source_mask": padding_mask}

    def decode_step(self, tokens, rows, state):
        """Return the logits that follow `tokens`, and the new state.

        This is the step function of `keras_transformer.decoding`.

        Args:
            tokens: int32 `[batch * width]`, the last token of each row, BOS at first.
            rows: int32 `[batch * width]`, for each row the row of the last call that it
                continues; None for itself.
            state: From `start_decoding` or the last call.

        Returns:
            Logits `[batch * width, target vocabulary]` in at least float32, and the state.
        """
        cache = self.decoder.reorder_cache(state["cache"], rows)
        states, cache = self.decoder(
            self.target_embedding(ops.expand_dims(tokens, 1)),
            encoder_padding_mask=state["source_mask"],
            cache=cache,
            training=False,
        )
        logits = self.target_embedding(ops.squeeze(states, 1), reverse=True)
        return logits, {**state, "cache": cache}

    def attention_scores(self, source, target):
        """Return the attention weights of every block, without dropout.

        Args:
            source: int32 `[batch, source_length]`.
            target: int32 `[batch, target_length]`, beginning with BOS.

        Returns:
            A dict of lists over blocks: `"encoder"` `[batch, heads, source, source]`,
            `"decoder"` `[batch, heads, target, target]` and `"cross"`
            `[batch, heads, target, source]`.
        """
        source_mask = ops.not_equal(source, _PADDING_ID)
        encoder_outputs, encoder_scores = self.encoder(
            self.source_embedding(source),
            padding_mask=source_mask,
            return_attention_scores=True,
            training=False,
        )
        _, decoder_scores = self.decoder(
            self.target_embedding(target),
            encoder_outputs,
            padding_mask=ops.not_equal(target, _PADDING_ID),
            encoder_padding_mask=source_mask,
            return_attention_scores=True,
            training=False,
        )
        return {
            "encoder": encoder_scores,
            "decoder": [scores["self"] for scores in decoder_scores],
            "cross": [scores["cross"] for scores in decoder_scores],
        }

    def get_config(self):
        return {
            "config": self.config.to_dict(),
            "dtype": keras.dtype_policies.serialize(self.policy),
            "name": self.name,
            "trainable": self.trainable,
            "trainable_parts": trainable_parts(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        config["config"] = TransformerConfig.from_dict(config["config"])
        config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        # Configs that were written before these two were saved do not have them.
        trainable, parts = config.pop("trainable", True), config.pop("trainable_parts", {})
        model = cls(**config)
        model.trainable = trainable
        set_trainable_parts(model, parts)
        return model


def _make_embeddings(config, policy):
    """Return the target embedding, tied to the softmax, and the source embedding."""
    name = "embedding" if config.target_vocab_size is None else "target_embedding"
    embedding = TiedEmbedding(config.output_vocab_size, config.d_model, dtype=policy, name=name)
    if config.target_vocab_size is None:
        return embedding, embedding
    source_embedding = TiedEmbedding(
        config.vocab_size, config.d_model, dtype=policy, name="source_embedding"
    )
    return embedding, source_embedding


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
