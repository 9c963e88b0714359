"""The encoder-decoder of the paper as a functional Keras model."""

import types
from collections.abc import Mapping
from typing import Any, Self

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
from keras_transformer.layers.composite_layer import (
    quantize_parts,
    quantized_parts,
    set_trainable_parts,
    trainable_parts,
)
from keras_transformer.layers.tensors import Tensor, segment_mask, segment_positions
from keras_transformer.models.decoding_state import AnyState, DecodingState, SharedDecodingState
from keras_transformer.models.micro_batches import MicroBatchModel
from keras_transformer.settings.presets import get_preset
from keras_transformer.settings.transformer_config import TransformerConfig

# Settings that are arguments of the blocks.
_BLOCK_SETTINGS = """
    num_heads intermediate_dim key_dim value_dim norm use_bias activation
    attention_dropout activation_dropout sliding_window flash_attention
""".split()


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(MicroBatchModel):
    """The Transformer: maps source and target token ids to logits of the next target token.

    A functional model with the methods that decoding needs. Id 0 is padding on both sides.

    Args:
        config: A `TransformerConfig`.
        dtype: Dtype policy of all layers, such as `"mixed_bfloat16"`; None for the global one.
        name: Name of the model.
        initialize: Whether to draw initial values of the matrices. With False they are zeros, for
            weights from a file: this takes less time, and a third of the memory.

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

    def __init__(
        self,
        config: TransformerConfig,
        dtype: Any = None,
        name: str = "transformer",
        initialize: bool = True,
    ) -> None:
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())

        def embedding(vocab_size, name, use_bias=config.output_bias):
            options = {"use_bias": use_bias, "dtype": policy, "name": name}
            options["embeddings_initializer"] = None if initialize else "zeros"
            return TiedEmbedding(vocab_size, config.d_model, **options)

        # A Keras model has no attributes before it is initialized; `decoder_states` reads these.
        layers: Any = types.SimpleNamespace()
        if config.target_vocab_size is None:
            layers.target_embedding = embedding(config.vocab_size, "embedding")
            layers.source_embedding = layers.target_embedding
        else:
            layers.target_embedding = embedding(config.target_vocab_size, "target_embedding")
            layers.source_embedding = embedding(config.vocab_size, "source_embedding", False)
        layers.encoder = _make_stack(Encoder, EncoderBlock, config, policy, initialize)
        layers.decoder = _make_stack(Decoder, DecoderBlock, config, policy, initialize)
        source = keras.Input((None,), dtype="int32", name="source")
        target = keras.Input((None,), dtype="int32", name="target")
        states = Transformer.decoder_states(layers, source, target)
        logits = layers.target_embedding(states, reverse=True)
        super().__init__({"source": source, "target": target}, logits, name=name)
        self.config = config
        # `compile` reads it to scale the loss of float16; a functional model does not set it.
        self.dtype_policy = policy
        self.source_embedding: TiedEmbedding = layers.source_embedding
        self.target_embedding: TiedEmbedding = layers.target_embedding
        self.encoder: Encoder = layers.encoder
        self.decoder: Decoder = layers.decoder

    @classmethod
    def from_preset(
        cls,
        name: str,
        vocab_size: int,
        target_vocab_size: int | None = None,
        dtype: Any = None,
        **overrides: Any,
    ) -> Self:
        """Returns a new model of a preset, with random weights.

        Args:
            name: One of `list_presets()`.
            vocab_size, target_vocab_size: As in `TransformerConfig`.
            dtype: Dtype policy; None for the global one.
            **overrides: Other fields of `TransformerConfig`.

        Example:

        >>> model = keras_transformer.models.Transformer.from_preset("base", vocab_size=37000)
        >>> model.count_params()
        63045632
        """
        values = {"vocab_size": vocab_size, "target_vocab_size": target_vocab_size}
        config = {**values, **get_preset(name).config, **overrides}
        return cls(TransformerConfig.from_dict(config), dtype=dtype)

    def encode(self, source: Tensor, training: bool | None = None) -> tuple[Tensor, Tensor]:
        """Returns the encoder's outputs `[batch, source_length, d_model]` and the padding mask.

        Args:
            source: int32 `[batch, source_length]`.
            training: Whether to apply dropout.
        """
        padding_mask = _is_token(source, self.source_embedding)
        outputs = self.encoder(
            self.source_embedding(source), padding_mask=padding_mask, training=training
        )
        return outputs, padding_mask

    def decoder_states(
        self,
        source: Tensor,
        target: Tensor,
        source_segments: Tensor | None = None,
        target_segments: Tensor | None = None,
    ) -> Tensor:
        """Returns the outputs of the decoder, `[batch, target_length, d_model]`, before the logits.

        With segments, a sequence of the batch holds several sentences: positions start at 0 in each
        of them, and none attends to another.

        Args:
            source: int32 `[batch, source_length]`.
            target: int32 `[batch, target_length]`, every sentence beginning with BOS.
            source_segments: int32 `[batch, source_length]`: 1 for the first sentence of a sequence,
                2 for the second, and so on; 0 on padding. None for one sentence in each.
            target_segments: int32 `[batch, target_length]`, in the same way.
        """
        source_mask = _is_token(source, self.source_embedding)
        source_options, target_options = {}, {}
        if source_segments is not None:
            source_options = {
                "attention_mask": segment_mask(source_segments, source_segments),
                "positions": segment_positions(source_segments),
            }
            target_options = {
                "attention_mask": segment_mask(target_segments, target_segments),
                "encoder_attention_mask": segment_mask(target_segments, source_segments),
                "positions": segment_positions(target_segments),
            }
        encoder_outputs = self.encoder(
            self.source_embedding(source), padding_mask=source_mask, **source_options
        )
        return self.decoder(
            self.target_embedding(target),
            encoder_outputs,
            padding_mask=_is_token(target, self.target_embedding),
            encoder_padding_mask=source_mask,
            **target_options,
        )

    def start_decoding(self, source: Tensor, width: int = 1, max_length: Any = None) -> AnyState:
        """Returns the state that `decode_step` begins with, of the encoded source.

        Args:
            source: int32 `[batch, source_length]`.
            width: Number of hypotheses of each sentence, such as its beams.
            max_length: Maximum length of a target. Needed on JAX, where caches have a fixed size;
                elsewhere they grow, and it is ignored.
        """
        encoder_outputs, source_mask = self.encode(source, training=False)
        batch = ops.shape(source)[0]
        if keras.backend.backend() != "jax":
            max_length = None
        if width == 1 or not self._beams_share_a_cache:
            cache = self.decoder.make_cache(encoder_outputs, batch * width, max_length)
            return DecodingState(cache, source_mask)
        num_slots = None if max_length is None else max_length * width
        cache = self.decoder.make_cache(encoder_outputs, batch, num_slots)
        length = max_length or cache.blocks[0].self_attention.length  # 0 if it grows.
        slots = ops.full((batch, width, length), -1, dtype="int32")
        return SharedDecodingState(cache, source_mask, slots)

    @property
    def _beams_share_a_cache(self):
        # Positions inside attention, and windows, count places in the cache, one for each position.
        config = self.config
        return config.sliding_window is None and config.position in ("sinusoidal", "learned")

    def output_embeddings(self, token_ids: Tensor) -> Tensor:
        """Returns the embeddings of some tokens, for a `decode_step` with their logits alone.

        Args:
            token_ids: int32 `[columns]`.
        """
        return self.target_embedding.output_embeddings(token_ids)

    def decode_step(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        state: AnyState,
        output_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, AnyState]:
        """Returns the logits that follow `tokens`, and the new state: a `decoding.Step`.

        Args:
            tokens: int32 `[batch * width]`, the last token of each hypothesis, BOS at first.
            parents: int32 `[batch * width]`; hypothesis h continues hypothesis `parents[h]` of the
                last call, which belongs to the same sentence. None for no change.
            state: From `start_decoding` or the last call.
            output_embeddings: From `output_embeddings`; None for the logits of all tokens.

        Returns:
            Logits `[batch * width, vocabulary or columns]` in at least float32, and the state.
        """
        width, beams = 1, dict[str, Any]()
        if isinstance(state, SharedDecodingState):
            width = state.slots.shape[1]
            state, beams = state.advance(parents)
        elif not self._beams_share_a_cache:  # Otherwise there is one beam, its own parent.
            state = state._replace(cache=state.cache.reorder(parents))
        # [batch * width] -> [batch, width]
        tokens = ops.reshape(tokens, (-1, width))
        states, cache = self.decoder(
            self.target_embedding(tokens),  # [batch, width, d_model]
            encoder_padding_mask=state.source_mask,
            cache=state.cache,
            training=False,
            **beams,
        )
        return self.next_logits(states, output_embeddings), state._replace(cache=cache)

    def next_logits(self, states: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """Returns the logits of a step of decoding, `[batch * width, vocabulary or columns]`.

        Args:
            states: `[batch, width, d_model]`, the outputs of the decoder.
            embeddings: As in a call of `TiedEmbedding`.
        """
        logits = self.target_embedding(states, reverse=True, embeddings=embeddings)
        # [batch, width, vocabulary or columns] -> [batch * width, vocabulary or columns]
        return ops.reshape(logits, (-1, ops.shape(logits)[-1]))

    def keep_sentences(self, state: AnyState, sentences: Tensor) -> AnyState:
        """Returns the state of some sentences, with the parts of growing caches merged for speed.

        Args:
            state: From `start_decoding` or `decode_step`.
            sentences: int32 `[kept]`, indices of the sentences to keep, in their new order.
        """
        return state.keep(sentences)

    def attention_scores(self, source: Tensor, target: Tensor) -> dict[str, list[Tensor]]:
        """Returns the attention weights of every block, without dropout.

        Args:
            source, target: As in `decoder_states`.

        Returns:
            A dict of lists over blocks: `"encoder"` `[batch, heads, source, source]`, `"decoder"`
            `[batch, heads, target, target]` and `"cross"` `[batch, heads, target, source]`. With a
            `sliding_window`, the last dimension of the first two has the keys of the window only.
        """
        source_mask = _is_token(source, self.source_embedding)
        options = {"return_attention_scores": True, "training": False}
        encoder_outputs, encoder_scores = self.encoder(
            self.source_embedding(source), padding_mask=source_mask, **options
        )
        _, decoder_scores = self.decoder(
            self.target_embedding(target),
            encoder_outputs,
            padding_mask=_is_token(target, self.target_embedding),
            encoder_padding_mask=source_mask,
            **options,
        )
        return {
            "encoder": encoder_scores,
            "decoder": [scores["self"] for scores in decoder_scores],
            "cross": [scores["cross"] for scores in decoder_scores],
        }

    def get_config(self) -> dict:
        return {
            "config": self.config.to_dict(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
            "trainable_parts": trainable_parts(self),
            "quantized_parts": quantized_parts(self),
        }

    @classmethod
    def from_config(cls, config: dict, custom_objects: Mapping | None = None) -> Self:
        config = dict(config)
        config["config"] = TransformerConfig.from_dict(config["config"])
        config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        # Older configs do not have these three.
        trainable, frozen = config.pop("trainable", True), config.pop("trainable_parts", {})
        quantized = config.pop("quantized_parts", {})
        model = cls(**config)
        quantize_parts(model, quantized)
        model.trainable = trainable
        set_trainable_parts(model, frozen)
        return model


def _is_token(ids, embedding):
    return ops.not_equal(ids, embedding.padding_id)


def _make_stack(stack_class, block_class, config, policy, initialize):
    name = stack_class.__name__.lower()
    options = {"dropout": config.dropout, "epsilon": config.norm_epsilon, "dtype": policy}
    settings = {name: getattr(config, name) for name in _BLOCK_SETTINGS}
    settings["kernel_initializer"] = "glorot_uniform" if initialize else "zeros"

    position_options = {"dtype": policy, "name": "position"}
    positions = {
        "relative": lambda: RelativePosition(config.max_distance, **position_options),
        "rotary": lambda: RotaryPosition(**position_options),
    }
    position_of_block = positions.get(config.position, lambda: None)
    blocks = [
        block_class(**settings, **options, position=position_of_block(), name=f"block_{index}")
        for index in range(getattr(config, f"num_{name}_layers"))
    ]
    position = config.position if config.position == "sinusoidal" else None
    if config.position == "learned":
        position = LearnedPositionEmbedding(config.max_length, **position_options)
    options |= {"remat": config.remat, "embedding_norm": config.embedding_norm}
    return stack_class(blocks, position, **options, name=name)
