"""Every public layer keeps every promise of the harness."""

import json
from functools import partial

import keras
import numpy as np
import pytest

from keras_transformer import layers
from tests.layers.harness import check_layer, reload_in_a_fresh_process
from tests.layers.oracle_parameters import (
    array,
    attention_parameters,
    block_parameters,
    feed_forward_parameters,
    stack_parameters,
)
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

BLOCK = {"num_heads": 2, "intermediate_dim": 24}


def stack(stack_class, block_class, norm="post", num_blocks=1, position=None, **options):
    def make(dtype=None, **changes):
        blocks = [block_class(**BLOCK, norm=norm, dtype=dtype) for _ in range(num_blocks)]
        arguments = {"blocks": blocks, **options, **changes}
        if position is not None:
            arguments.setdefault("position", position(dtype=dtype))
        return stack_class(**arguments, dtype=dtype)

    return make


def of_sentences(function):
    """Apply an oracle of one sentence, `function(layer, inputs of the sentence)`, to the batch."""

    def expected(layer, inputs):
        rows = range(len(next(iter(inputs.values()))))
        return np.stack(
            [function(layer, {name: value[i] for name, value in inputs.items()}) for i in rows]
        )

    return expected


@of_sentences
def attention(layer, x):
    mask = x.get("attention_mask")
    params, value, key = attention_parameters(layer), x["value"], x.get("key")
    return oracle.multi_head_attention(params, 2, x["query"], value, key, mask)[0]


@of_sentences
def scaled_dot_product_attention(layer, x):
    heads = zip(x["query"], x["key"], x["value"], strict=True)
    return np.stack([oracle.attention(*head, x["attention_mask"])[0] for head in heads])


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
    split = lambda states, name: np.swapaxes(  # noqa: E731
        (states @ array(getattr(layer, f"{name}_dense").kernel)).reshape(5, 2, 8), 0, 1
    )
    query, key, value = (split(x["query"], name) for name in ("query", "key", "value"))
    rows = np.clip(np.arange(5) - np.arange(5)[:, None], -2, 2) + 2
    key_vectors, value_vectors = (array(table)[rows] for table in layer.position.weights)
    scores = (query[:, :, None] * (key[:, None] + key_vectors)).sum(-1) / 8**0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    outputs = (weights[..., None] * (value[:, None] + value_vectors)).sum(2)
    return np.swapaxes(outputs, 0, 1).reshape(5, 16) @ array(layer.output_dense.kernel)


def with_relative_positions(dtype=None, **changes):
    changes.setdefault("position", layers.RelativePosition(2, dtype=dtype))
    arguments = {"num_heads": 2, "key_dim": 8, "dtype": dtype, **changes}
    return layers.MultiHeadAttention(**arguments)


@of_sentences
def encoder_block(layer, x):
    masks = x.get("padding_mask"), x.get("attention_mask")
    return oracle.encoder_block(block_parameters(layer), 2, x["inputs"], *masks, layer.norm)


@of_sentences
def decoder_block(layer, x):
    return oracle.decoder_block(
        block_parameters(layer),
        2,
        x["inputs"],
        x.get("encoder_outputs"),
        x.get("padding_mask"),
        x.get("encoder_padding_mask"),
        layer.norm,
        cross_mask=x.get("encoder_attention_mask"),
    )


@of_sentences
def encoder(layer, x):
    norm = layer.blocks[0].norm
    return oracle.encoder(stack_parameters(layer), 2, x["inputs"], x["padding_mask"], norm)


@of_sentences
def decoder(layer, x):
    memory, memory_mask = x["encoder_outputs"], x["encoder_padding_mask"]
    return oracle.decoder(stack_parameters(layer), 2, x["inputs"], memory, memory_mask=memory_mask)


def layer_norm(layer, inputs):
    params = {"scale": array(layer.gamma), "shift": array(layer.beta)}
    return np.stack([oracle.layer_norm(params, rows) for rows in inputs["inputs"]])


def feed_forward(layer, inputs):
    return oracle.feed_forward(feed_forward_parameters(layer), inputs["inputs"], np.tanh)


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
OF_FEED_FORWARD = {
    "intermediate_dim": INTEGER,
    "dropout": RATE,
    "use_bias": BOOLEAN,
    "seed": SEED,
}
OF_EMBEDDING = {
    "vocab_size": INTEGER,
    "d_model": INTEGER,
    "padding_id": (
        "must be None or an id below `vocab_size`, which is 11",
        [-1, 11, 12, 0.0, True],
    ),
    "mask_zero": BOOLEAN,
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
    "position": ("must be 'sinusoidal', a layer that adds positions", ["rotary", 1]),
    "dropout": RATE,
    "final_norm": ("must be True or False", [0, "no"]),
    "remat": BOOLEAN,
    "epsilon": NUMBER,
    "seed": SEED,
}

# It adds the same to all scores of a query, which a softmax does not see.
KEY_BIAS = ["key/bias"]

# Name: how to make it, its inputs, and what is expected of it.
CASES = {
    "attention": (
        partial(layers.MultiHeadAttention, num_heads=2, key_dim=8),
        {"query": STATES, "value": SOURCE, "attention_mask": CROSS_MASK},
        {"num_weights": 4, "expected": attention, "bad_arguments": OF_ATTENTION},
    ),
    "attention_with_everything": (
        partial(
            layers.MultiHeadAttention,
            num_heads=2,
            key_dim=3,
            value_dim=5,
            use_bias=True,
            dropout=0.1,
            bias_initializer="random_normal",
            kernel_regularizer="l2",
            seed=3,
        ),
        {"query": STATES, "value": SOURCE, "key": SOURCE[..., :4]},
        {
            "num_weights": 8,
            "num_seed_generators": 1,
            "expected": attention,
            "bad_arguments": OF_ATTENTION,
            "without_gradient": KEY_BIAS,
        },
    ),
    "attention_by_blocks": (
        partial(layers.MultiHeadAttention, num_heads=2, key_dim=8, flash_attention=True),
        {"query": STATES, "value": SOURCE, "attention_mask": CROSS_MASK},
        {"num_weights": 4, "expected": attention, "bad_arguments": OF_ATTENTION},
    ),
    "attention_in_a_window": (
        partial(layers.MultiHeadAttention, num_heads=2, key_dim=8, sliding_window=3),
        {"query": STATES, "value": STATES},
        {
            "num_weights": 4,
            "expected": windowed_attention,
            "bad_arguments": OF_ATTENTION,
        },
    ),
    "attention_with_relative_positions": (
        with_relative_positions,
        {"query": STATES, "value": STATES},
        {"num_weights": 6, "expected": relative_attention, "bad_arguments": OF_ATTENTION},
    ),
    "additive_attention": (
        layers.AdditiveAttention,
        {**HEADS, "attention_mask": CROSS_MASK},
        {
            "num_weights": 1,
            "num_seed_generators": 0,
            "output_shape": (2, 2, 5, 6),
            "expected": additive_attention,
            "bad_arguments": {"dropout": RATE, "seed": SEED},
        },
    ),
    "scaled_dot_product_attention": (
        partial(layers.ScaledDotProductAttention, dropout=0.1, seed=1),
        {**HEADS, "attention_mask": CROSS_MASK},
        {
            "num_weights": 0,
            "num_seed_generators": 1,
            "output_shape": (2, 2, 5, 6),
            "expected": scaled_dot_product_attention,
            "bad_arguments": {
                "dropout": RATE,
                "seed": SEED,
                "scale": SCALE,
                "flash_attention": SWITCH,
            },
        },
    ),
    "feed_forward": (
        partial(layers.FeedForward, intermediate_dim=24, dropout=0.1, activation="tanh"),
        {"inputs": STATES},
        {
            "num_weights": 4,
            "num_seed_generators": 1,
            "expected": feed_forward,
            "bad_arguments": OF_FEED_FORWARD,
        },
    ),
    "feed_forward_without_bias": (
        partial(
            layers.FeedForward,
            intermediate_dim=24,
            activation="tanh",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
        ),
        {"inputs": STATES},
        {"num_weights": 2, "expected": feed_forward, "bad_arguments": OF_FEED_FORWARD},
    ),
    "sinusoid": (
        layers.SinusoidalPositionEncoding,
        {"inputs": STATES},
        {
            "num_weights": 0,
            "expected": lambda layer, x: x["inputs"] + oracle.sinusoid(range(5), 16),
            "bad_arguments": {"max_wavelength": NUMBER},
        },
    ),
    "learned": (
        partial(layers.LearnedPositionEmbedding, max_length=5, embeddings_initializer="uniform"),
        {"inputs": STATES},
        {
            "num_weights": 1,
            "expected": lambda layer, x: x["inputs"] + array(layer.embeddings),
            "bad_arguments": {"max_length": INTEGER},
        },
    ),
    "embedding": (
        partial(layers.TiedEmbedding, vocab_size=11, d_model=16, embeddings_regularizer="l2"),
        {"inputs": IDS},
        {
            "num_weights": 1,
            "output_shape": (2, 5, 16),
            "expected": lambda layer, x: oracle.embed(
                array(layer.embeddings), x["inputs"].ravel()
            ).reshape(2, 5, 16),
            "bad_arguments": OF_EMBEDDING,
        },
    ),
    "norm": (
        layers.LayerNormalization,
        {"inputs": STATES},
        {"num_weights": 2, "expected": layer_norm, "bad_arguments": {"epsilon": NUMBER}},
    ),
    "dropout": (
        partial(layers.Dropout, rate=0.5, seed=1),
        {"inputs": STATES},
        {
            "num_weights": 0,
            "num_seed_generators": 1,
            "expected": lambda layer, x: x["inputs"],
            "bad_arguments": {"rate": RATE, "seed": SEED},
        },
    ),
    "encoder_block": (
        partial(layers.EncoderBlock, **BLOCK),
        {"inputs": STATES, "padding_mask": PADDING, "attention_mask": MASK},
        {
            "num_weights": 12,
            "num_seed_generators": 2,
            "expected": encoder_block,
            "bad_arguments": OF_BLOCK,
        },
    ),
    "pre_norm_encoder_block": (
        partial(layers.EncoderBlock, **BLOCK, norm="pre", use_bias=True, dropout=0.0),
        {"inputs": STATES, "padding_mask": PADDING},
        {
            "num_weights": 16,
            "expected": encoder_block,
            "bad_arguments": OF_BLOCK,
            "without_gradient": KEY_BIAS,
        },
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
        {
            "num_weights": 18,
            "num_seed_generators": 6,
            "expected": decoder_block,
            "bad_arguments": OF_BLOCK,
        },
    ),
    "decoder_only_block": (
        partial(layers.DecoderBlock, **BLOCK, norm="pre", dropout=0.0),
        {"inputs": STATES, "padding_mask": PADDING},
        {"num_weights": 12, "expected": decoder_block, "bad_arguments": OF_BLOCK},
    ),
    "encoder": (
        stack(layers.Encoder, layers.EncoderBlock, num_blocks=2),
        {"inputs": STATES, "padding_mask": PADDING},
        {
            "num_weights": 24,
            "num_seed_generators": 5,
            "expected": encoder,
            "bad_arguments": OF_STACK,
        },
    ),
    "pre_norm_encoder_with_learned_positions": (
        stack(
            layers.Encoder,
            layers.EncoderBlock,
            norm="pre",
            position=partial(layers.LearnedPositionEmbedding, 5),
        ),
        {"inputs": STATES, "padding_mask": PADDING},
        {
            "num_weights": 15,
            "num_seed_generators": 3,
            "expected": encoder,
            "bad_arguments": OF_STACK,
        },
    ),
    "decoder": (
        stack(layers.Decoder, layers.DecoderBlock, dropout=0.0),
        {"inputs": STATES, "encoder_outputs": SOURCE, "encoder_padding_mask": SOURCE_PADDING},
        {
            "num_weights": 18,
            "num_seed_generators": 3,
            "expected": decoder,
            "bad_arguments": OF_STACK,
        },
    ),
}


WHOLE = ["attention_with_everything", "embedding"]
PARTS = [case for case in CASES if case not in WHOLE]
# Other cases contain these layers.
INSIDE_OTHERS = ["attention", "feed_forward", "encoder_block", "pre_norm_encoder_block"]
INSIDE_OTHERS += ["decoder_block", "decoder_only_block", "encoder"]


def check(case, **options):
    make, inputs, promises = CASES[case]
    check_layer(make, inputs, **promises, **options)


@pytest.mark.parametrize(
    "case", [*WHOLE, *(pytest.param(case, marks=pytest.mark.slow) for case in PARTS)]
)
def test_layer_keeps_its_promises(case):
    check(case)


@pytest.mark.parametrize("case", [case for case in PARTS if case not in INSIDE_OTHERS])
def test_layer_keeps_its_promises_short_of_training_and_export(case):
    check(case, is_quick=True)


@pytest.mark.parametrize("case", CASES)
def test_a_config_is_plain_data(case):
    config = CASES[case][0]().get_config()
    assert json.loads(json.dumps(config)) == config


@pytest.mark.slow
def test_a_fresh_process_reloads_every_layer_bit_for_bit(tmp_path):
    for case in CASES:
        check(case, is_quick=True, path=tmp_path / case)
    assert reload_in_a_fresh_process(tmp_path) == dict.fromkeys(CASES, 0.0)


def test_no_public_layer_is_missing():
    made = {type(make()) for make, _, _ in CASES.values()}
    # Bases, and parts of an attention that nobody calls alone.
    made |= {layers.AttentionFunction, layers.AttentionPosition}
    made |= {layers.RelativePosition, layers.RotaryPosition}
    assert made == {getattr(layers, name) for name in layers.__all__}


def test_the_logits_of_the_embedding_are_declared_and_computed_alike():
    """The other use of `TiedEmbedding`, which the harness, with one form of call, does not see."""
    layer = layers.TiedEmbedding(11, 16, dtype="mixed_bfloat16")
    declared = layer(keras.KerasTensor((2, 5, 16)), reverse=True)
    logits = layer(STATES, reverse=True)
    assert declared.shape == tuple(logits.shape) == (2, 5, 11)
    assert declared.dtype == keras.backend.standardize_dtype(logits.dtype) == "float32"


@pytest.mark.parametrize("shape", [(5, 16), (1, 5, 5, 16)])
@pytest.mark.parametrize(
    "name,make",
    [
        ("inputs", layers.SinusoidalPositionEncoding),
        ("inputs", partial(layers.LearnedPositionEmbedding, 20)),
        ("query", partial(layers.EncoderBlock, **BLOCK)),
    ],
)
def test_states_of_another_rank_are_refused(name, make, shape):
    with pytest.raises(ValueError, match=f"`{name}` must have the shape .batch, .*length, d_model"):
        make()(np.zeros(shape, "float32"))
