"""Keras layers of the Transformer (Vaswani et al., 2017), on every Keras backend."""

from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.attention_position import (
    AttentionPosition,
    RelativePosition,
    RotaryPosition,
)
from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.encoder import Encoder
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.learned_position_embedding import LearnedPositionEmbedding
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.scaled_dot_product_attention import ScaledDotProductAttention
from keras_transformer.layers.sinusoidal_position_encoding import SinusoidalPositionEncoding
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
