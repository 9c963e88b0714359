"""Every public layer through the harness."""

from functools import partial

import keras
import numpy as np
import pytest

from keras_transformer import layers
from tests.layers.harness import check_layer

RNG = np.random.default_rng(3)
STATES = RNG.normal(size=(2, 5, 16)).astype("float32")
SOURCE = RNG.normal(size=(2, 7, 16)).astype("float32")
PADDING = np.arange(5) < np.array([[5], [3]])
SOURCE_PADDING = np.arange(7) < np.array([[4], [7]])
MASK = np.tril(np.ones((2, 5, 5), bool))
CROSS_MASK = RNG.random((2, 5, 7)) < 0.7
IDS = RNG.integers(1, 11, (2, 5)).astype("int32")

BLOCK = {"num_heads": 2, "intermediate_dim": 24}


def stack(stack_class, block_class, norm="post", position=lambda **kwargs: "sinusoidal", **options):
    def make(**kwargs):
        blocks = [block_class(**BLOCK, norm=norm, **kwargs) for _ in range(2)]
        return stack_class(blocks, position=position(**kwargs), **options, **kwargs)

    return make


CASES = {
    "attention": (
        partial(layers.MultiHeadAttention, 2, 8),
        {"query": STATES, "value": SOURCE, "attention_mask": CROSS_MASK},
        {"num_weights": 4},
    ),
    "attention_with_everything": (
        partial(
            layers.MultiHeadAttention,
            2,
            3,
            value_dim=5,
            use_bias=True,
            dropout=0.1,
            bias_initializer="random_normal",
            kernel_regularizer="l2",
            seed=3,
        ),
        {"query": STATES, "value": SOURCE, "key": SOURCE[..., :4]},
        {"num_weights": 8, "num_seed_generators": 1},
    ),
    "feed_forward": (
        partial(layers.FeedForward, 24, dropout=0.1, activation="gelu"),
        {"inputs": STATES},
        {"num_weights": 4, "num_seed_generators": 1},
    ),
    "feed_forward_without_bias": (
        partial(layers.FeedForward, 24, use_bias=False, kernel_initializer="he_normal"),
        {"inputs": STATES},
        {"num_weights": 2},
    ),
    "sinusoid": (layers.SinusoidalPositionEncoding, {"inputs": STATES}, {"num_weights": 0}),
    "learned": (
        partial(layers.LearnedPositionEmbedding, 5, embeddings_initializer="uniform"),
        {"inputs": STATES},
        {"num_weights": 1},
    ),
    "embedding": (
        partial(layers.TiedEmbedding, 11, 16),
        {"inputs": IDS},
        {"num_weights": 1, "output_shape": (2, 5, 16)},
    ),
    "dropout": (
        partial(layers.Dropout, 0.5, seed=1),
        {"inputs": STATES},
        {"num_weights": 0, "num_seed_generators": 1},
    ),
    "encoder_block": (
        partial(layers.EncoderBlock, **BLOCK),
        {"inputs": STATES, "padding_mask": PADDING, "attention_mask": MASK},
        {"num_weights": 12, "num_seed_generators": 2},
    ),
    "pre_norm_encoder_block": (
        partial(layers.EncoderBlock, **BLOCK, norm="pre", use_bias=True, activation="gelu"),
        {"inputs": STATES, "padding_mask": PADDING},
        {"num_weights": 16, "num_seed_generators": 2},
    ),
    "decoder_block": (
        partial(layers.DecoderBlock, **BLOCK, attention_dropout=0.1, activation_dropout=0.1),
        {
            "inputs": STATES,
            "encoder_outputs": SOURCE,
            "padding_mask": PADDING,
            "encoder_padding_mask": SOURCE_PADDING,
            "encoder_attention_mask": CROSS_MASK,
        },
        {"num_weights": 18, "num_seed_generators": 6},
    ),
    "decoder_only_block": (
        partial(layers.DecoderBlock, **BLOCK, norm="pre", dropout=0.0),
        {"inputs": STATES, "padding_mask": PADDING},
        {"num_weights": 12},
    ),
    "encoder": (
        stack(layers.Encoder, layers.EncoderBlock),
        {"inputs": STATES, "padding_mask": PADDING},
        {"num_weights": 24, "num_seed_generators": 5},
    ),
    "pre_norm_encoder_with_learned_positions": (
        stack(
            layers.Encoder,
            layers.EncoderBlock,
            norm="pre",
            position=partial(layers.LearnedPositionEmbedding, 9),
        ),
        {"inputs": STATES, "padding_mask": PADDING},
        {"num_weights": 27, "num_seed_generators": 5},
    ),
    "decoder": (
        stack(layers.Decoder, layers.DecoderBlock, dropout=0.0),
        {"inputs": STATES, "encoder_outputs": SOURCE, "encoder_padding_mask": SOURCE_PADDING},
        {"num_weights": 36, "num_seed_generators": 6},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_layer_keeps_its_promises(case):
    make, inputs, expected = CASES[case]
    check_layer(make, inputs, **expected)


def test_scaled_dot_product_attention_keeps_its_promises():
    heads = {
        name: np.swapaxes(RNG.normal(size=(2, length, 2, 8)), 1, 2).astype("float32")
        for name, length in (("query", 5), ("key", 7), ("value", 7))
    }
    layer = layers.ScaledDotProductAttention(dropout=0.1, seed=1)
    again = layers.ScaledDotProductAttention.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    outputs, scores = layer(**heads, attention_mask=CROSS_MASK, return_attention_scores=True)
    assert outputs.shape == (2, 2, 5, 8)
    assert scores.shape == (2, 2, 5, 7)
    symbolic = layer(**{name: keras.KerasTensor(value.shape) for name, value in heads.items()})
    assert symbolic.shape == (2, 2, 5, 8)
