"""Every public layer keeps every promise of the harness."""

from functools import partial

import numpy as np
import pytest

from keras_transformer import layers
from tests.layers import oracle_outputs
from tests.layers.harness import check_layer
from tests.layers.oracle_outputs import of_sentences
from tests.layers.oracle_parameters import array, attention_parameters
from tests.oracle import transformer as oracle

RNG = np.random.default_rng(3)
STATES = RNG.normal(size=(2, 5, 16)).astype("float32")
SOURCE = RNG.normal(size=(2, 7, 16)).astype("float32")
PADDING = np.arange(5) < np.array([[5], [3]])
SOURCE_PADDING = np.arange(7) < np.array([[4], [7]])
MASK = np.tril(np.ones((2, 5, 5), bool))
CROSS_MASK = RNG.random((2, 5, 7)) < 0.7
IDS = RNG.integers(0, 11, (2, 5)).astype("int32")
HEADS = {
    name: np.swapaxes(RNG.normal(size=(2, length, 2, width)), 1, 2).astype("float32")
    for name, length, width in (("query", 5, 8), ("key", 7, 8), ("value", 7, 6))
}

ATTENTION = {"num_heads": 2, "key_dim": 8}
BLOCK = {"num_heads": 2, "intermediate_dim": 24}


def stack(stack_class, block_class, norm="post", num_blocks=1, position=None, **options):
    def make(dtype=None, **changes):
        blocks = [block_class(**BLOCK, norm=norm, dtype=dtype) for _ in range(num_blocks)]
        arguments = {"blocks": blocks, **options, **changes}
        if position is not None:
            arguments.setdefault("position", position(dtype=dtype))
        return stack_class(**arguments, dtype=dtype)

    return make


def first(expected):
    """Of an oracle that gives outputs and weights, the outputs."""
    return lambda layer, inputs: expected(layer, inputs)[0]


attention = first(oracle_outputs.multi_head_attention)


@of_sentences
def windowed_attention(layer, x):
    distance = np.abs(np.arange(5) - np.arange(5)[:, None])
    params, band = attention_parameters(layer), distance < layer.sliding_window
    return oracle.multi_head_attention(params, 2, x["query"], x["value"], None, band)[0]


@of_sentences
def additive_attention(layer, x):
    hidden = np.tanh(x["query"][:, :, None] + x["key"][:, None])  # [heads, query, key, dim]
    scores = (hidden * array(layer.score_kernel)[:, None, None]).sum(-1)
    weights = np.exp(scores) * x["attention_mask"]
    return weights / weights.sum(-1, keepdims=True) @ x["value"]


@of_sentences
def relative_attention(layer, x):
    """Shaw et al. (2018), equations 3 and 4, written as loops."""
    heads = {}
    for name in ("query", "key", "value"):
        states = x[name if name == "query" else "value"]
        kernel = array(getattr(layer, f"{name}_dense").kernel)
        heads[name] = np.swapaxes((states @ kernel).reshape(5, 2, -1), 0, 1)
    tables = [array(table) for table in layer.position.weights]
    outputs = np.zeros((2, 5, 6))
    for i in range(5):
        rows = [min(max(j - i, -2), 2) + 2 for j in range(5)]
        keys, values = heads["key"] + tables[0][rows], heads["value"] + tables[1][rows]
        scores = np.exp((heads["query"][:, i, None] * keys).sum(-1) / 8**0.5)
        weights = scores / scores.sum(-1, keepdims=True)
        outputs[:, i] = (weights[..., None] * values).sum(1)
    return np.swapaxes(outputs, 0, 1).reshape(5, 12) @ array(layer.output_dense.kernel)


def with_relative_positions(dtype=None, **changes):
    changes.setdefault("position", layers.RelativePosition(2, dtype=dtype))
    arguments = {**ATTENTION, "value_dim": 6, "dtype": dtype, **changes}
    return layers.MultiHeadAttention(**arguments)


INTEGER = ("must be a positive integer", [0, -1, 2.0, True, "2"])
RATE = ("must be a number of at least 0 and less than 1", [-0.1, 1, "0.1", None, True])
NUMBER = ("must be a number greater than 0", [0, -1.0, "1", None, True])
SCALE = ("must be a number greater than 0", [0, -1.0, "1", True])
SWITCH = ("must be True or False", [0, "no"])
BOOLEAN = ("must be True or False", [None, 0, "no"])
SEED = ("must be an integer from 0 to 4294967295, or None", [0.5, "1", True, -1, 2**32])

OF_ATTENTION = {
    "attention": ("must be an `AttentionFunction` or None", ["additive", 1]),
    "position": ("must be an `AttentionPosition`", ["rotary", 1]),
    "sliding_window": ("must be a positive integer", [0, 2.0, True]),
    "num_heads": INTEGER,
    "key_dim": INTEGER,
    "value_dim": INTEGER,
    "flash_attention": SWITCH,
    "use_bias": BOOLEAN,
    "dropout": RATE,
    "seed": SEED,
}
OF_FEED_FORWARD = {"intermediate_dim": INTEGER, "dropout": RATE, "use_bias": BOOLEAN, "seed": SEED}
OF_EMBEDDING = {
    "vocab_size": INTEGER,
    "d_model": INTEGER,
    "padding_id": ("must be None or an id below `vocab_size`, which is 11", [-1, 11, 0.0, True]),
    "mask_zero": BOOLEAN,
    "use_bias": BOOLEAN,
}
OF_BLOCK = {
    **OF_ATTENTION,
    **OF_FEED_FORWARD,
    "attention_dropout": RATE,
    "activation_dropout": RATE,
    "norm": ("must be one of 'post', 'pre'", ["middle", None]),
    "epsilon": NUMBER,
}
del OF_BLOCK["attention"]
OF_STACK = {
    "blocks": ("must be a list of at least one layer", [[], None, ["block"]]),
    "position": (
        "must be 'auto', 'sinusoidal', a layer that adds positions",
        ["rotary", 1, layers.RotaryPosition()],
    ),
    "dropout": RATE,
    "final_norm": ("must be True or False", [0, "no"]),
    "remat": BOOLEAN,
    "embedding_norm": BOOLEAN,
    "epsilon": NUMBER,
    "seed": SEED,
}

# It adds the same to all scores of a query, which a softmax does not see.
KEY_BIAS = ["key/bias"]


def case(make, inputs, num_weights, expected, bad_arguments, **options):
    promises = {"num_weights": num_weights, "expected": expected, "bad_arguments": bad_arguments}
    return make, inputs, {**promises, **options}


CASES = {
    "attention_with_everything": case(
        partial(
            layers.MultiHeadAttention, num_heads=2, key_dim=3, value_dim=5, use_bias=True,
            dropout=0.1, bias_initializer="random_normal", kernel_regularizer="l2", seed=3,
        ),
        {"query": STATES, "value": SOURCE, "key": SOURCE[..., :4]},
        8, attention, OF_ATTENTION, num_seed_generators=1, without_gradient=KEY_BIAS,
    ),
    "attention_in_a_window": case(
        partial(layers.MultiHeadAttention, **ATTENTION, sliding_window=3),
        {"query": STATES, "value": STATES},
        4, windowed_attention, OF_ATTENTION,
    ),
    "attention_with_relative_positions": case(
        with_relative_positions,
        {"query": STATES, "value": STATES},
        6, relative_attention, OF_ATTENTION,
    ),
    "additive_attention": case(
        layers.AdditiveAttention,
        {**HEADS, "attention_mask": CROSS_MASK},
        1, additive_attention, {"dropout": RATE, "seed": SEED}, output_shape=(2, 2, 5, 6),
    ),
    "scaled_dot_product_attention": case(
        partial(layers.ScaledDotProductAttention, dropout=0.1, seed=1),
        {**HEADS, "attention_mask": CROSS_MASK},
        0, first(oracle_outputs.scaled_dot_product_attention),
        {"dropout": RATE, "seed": SEED, "scale": SCALE, "flash_attention": SWITCH},
        num_seed_generators=1, output_shape=(2, 2, 5, 6),
    ),
    "feed_forward": case(
        partial(layers.FeedForward, intermediate_dim=24, dropout=0.1, activation="tanh"),
        {"inputs": STATES},
        4, oracle_outputs.feed_forward, OF_FEED_FORWARD, num_seed_generators=1,
    ),
    "sinusoid": case(
        layers.SinusoidalPositionEncoding,
        {"inputs": STATES},
        0, lambda layer, x: x["inputs"] + oracle.sinusoid(range(5), 16), {"max_wavelength": NUMBER},
    ),
    "learned": case(
        partial(layers.LearnedPositionEmbedding, max_length=5, embeddings_initializer="uniform"),
        {"inputs": STATES},
        1, oracle_outputs.learned_positions, {"max_length": INTEGER},
    ),
    "embedding": case(
        partial(layers.TiedEmbedding, vocab_size=11, d_model=16, embeddings_regularizer="l2"),
        {"inputs": IDS},
        1, oracle_outputs.embedded, OF_EMBEDDING, output_shape=(2, 5, 16),
    ),
    "norm": case(
        layers.LayerNormalization,
        {"inputs": STATES},
        2, oracle_outputs.layer_normalization, {"epsilon": NUMBER},
    ),
    "dropout": case(
        partial(layers.Dropout, rate=0.5, seed=1),
        {"inputs": STATES},
        0, lambda layer, x: x["inputs"], {"rate": RATE, "seed": SEED}, num_seed_generators=1,
    ),
    "encoder_block": case(
        partial(layers.EncoderBlock, **BLOCK),
        {"inputs": STATES, "padding_mask": PADDING, "attention_mask": MASK},
        12, oracle_outputs.encoder_block, OF_BLOCK, num_seed_generators=2,
    ),
    "decoder_block": case(
        partial(layers.DecoderBlock, **BLOCK, attention_dropout=0.1, activation_dropout=0.1),
        {
            "inputs": STATES, "encoder_outputs": SOURCE, "padding_mask": PADDING,
            "encoder_padding_mask": SOURCE_PADDING, "encoder_attention_mask": CROSS_MASK,
        },
        18, oracle_outputs.decoder_block, OF_BLOCK, num_seed_generators=6,
    ),
    "pre_norm_encoder_with_learned_positions": case(
        stack(
            layers.Encoder, layers.EncoderBlock, norm="pre",
            position=partial(layers.LearnedPositionEmbedding, 5), embedding_norm=True,
        ),
        {"inputs": STATES, "padding_mask": PADDING},
        17, oracle_outputs.stack, OF_STACK, num_seed_generators=3,
    ),
    "decoder": case(
        stack(layers.Decoder, layers.DecoderBlock, dropout=0.0),
        {"inputs": STATES, "encoder_outputs": SOURCE, "encoder_padding_mask": SOURCE_PADDING},
        18, oracle_outputs.stack, OF_STACK, num_seed_generators=3,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("error", "ignore:__array__ implementation")  # Keras' own.
@pytest.mark.parametrize("is_quick", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_layer_keeps_its_promises(name, is_quick):
    make, inputs, promises = CASES[name]
    check_layer(make, inputs, **promises, is_quick=is_quick)


def test_no_public_layer_is_missing():
    made = {type(make()) for make, _, _ in CASES.values()}
    # Bases, and parts of an attention that nobody calls alone.
    made |= {layers.AttentionFunction, layers.AttentionPosition}
    made |= {layers.RelativePosition, layers.RotaryPosition}
    assert made == {getattr(layers, name) for name in layers.__all__}
