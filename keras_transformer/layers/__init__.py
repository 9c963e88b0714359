"""Keras layers of the Transformer (Vaswani et al., 2017), on every Keras backend."""

from keras_transformer.layers.attention_function import (
    AdditiveAttention,
    AttentionFunction,
    ScaledDotProductAttention,
)
from keras_transformer.layers.decoder import Decoder, DecoderBlock
from keras_transformer.layers.dropout_and_normalization import Dropout, LayerNormalization
from keras_transformer.layers.encoder import Encoder, EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positions import (
    AttentionPosition,
    LearnedPositionEmbedding,
    RelativePosition,
    RotaryPosition,
    SinusoidalPositionEncoding,
)
from keras_transformer.layers.tied_embedding import TiedEmbedding

__all__ = [
    "AdditiveAttention",
    "AttentionFunction",
    "AttentionPosition",
    "Decoder",
    "DecoderBlock",
    "Dropout",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "LayerNormalization",
    "LearnedPositionEmbedding",
    "MultiHeadAttention",
    "RelativePosition",
    "RotaryPosition",
    "ScaledDotProductAttention",
    "SinusoidalPositionEncoding",
    "TiedEmbedding",
]
