"""Errors of layers, model and loss against the float64 oracle, in a given precision.

An error is the largest difference from the oracle relative to the oracle's largest number. The
oracle gets the weights and inputs as the layer holds them, so that the error is that of the
computation alone.
"""

import functools

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_transformer import layers
from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.training import LabelSmoothedCrossEntropy
from tests.layers.oracle_parameters import (
    attention_parameters,
    block_parameters,
    feed_forward_parameters,
    randomize,
    stack_parameters,
    transformer_parameters,
)
from tests.oracle import loss as oracle_loss
from tests.oracle import transformer as oracle
from tests.oracle.slopes import slopes_of_gradient
from tests.precision.against_oracle import (
    gradient_tree,
    relative_error,
    transformer_logits,
    transformer_slopes,
)
from tests.precision.gradients import array, has_float64, value_and_gradients

POLICIES = ("float64", "float32", "mixed_bfloat16", "mixed_float16", "bfloat16")

RNG = np.random.default_rng(17)
D_MODEL, HEADS, INNER, VOCABULARY = 24, 3, 32, 50
STATES, SOURCE = RNG.normal(size=(2, 6, D_MODEL)), RNG.normal(size=(2, 7, D_MODEL))
HEAD_STATES = [RNG.normal(size=(2, HEADS, length, 8)) for length in (6, 7, 7)]
LOGITS = RNG.normal(size=(2, 6, VOCABULARY), scale=4.0)
PADDING = np.arange(6) < np.array([[6], [4]])
SOURCE_PADDING = np.arange(7) < np.array([[5], [7]])
IDS = RNG.integers(1, VOCABULARY, (2, 6)).astype("int32") * PADDING
SOURCE_IDS = RNG.integers(1, VOCABULARY, (2, 7)).astype("int32") * SOURCE_PADDING
LABELS = RNG.integers(1, VOCABULARY, (2, 6)).astype("int32")
WEIGHTS = (PADDING / PADDING.sum()).astype("float32")
LAST_POSITION = 5000
BLOCK = {"num_heads": HEADS, "intermediate_dim": INNER, "dropout": 0.0}


def policies():
    """The policies that this backend computes as they say."""
    return [policy for policy in POLICIES if policy != "float64" or has_float64()]


def compute_dtype(policy):
    return keras.dtype_policies.get(policy).compute_dtype


def epsilon(dtype):
    return float(ml_dtypes.finfo(dtype).eps)


def held(values, policy):
    """Values rounded to the compute dtype of the policy."""
    dtype = compute_dtype(policy)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype("float64")


def rows(function, *batches):
    return np.stack([function(*row) for row in zip(*batches, strict=True)])


def built(layer, *inputs, **kwargs):
    """The layer with random weights."""
    layer(*inputs, **kwargs)
    randomize(layer)
    return layer


def embedding_lookup(policy):
    layer = built(layers.TiedEmbedding(VOCABULARY, D_MODEL, dtype=policy), IDS)
    expected = rows(functools.partial(oracle.embed, array(layer.embeddings)), IDS)
    return relative_error(array(layer(IDS)), expected)


def embedding_logits(policy):
    layer = built(layers.TiedEmbedding(VOCABULARY, D_MODEL, dtype=policy), IDS)
    states = held(STATES, policy)
    return relative_error(array(layer(states, reverse=True)), states @ array(layer.embeddings).T)


def sinusoids(policy):
    """At the first 50 positions and those up to 5,000."""
    positions = np.r_[:50, LAST_POSITION - 49 : LAST_POSITION + 1].astype("int32")
    layer = layers.SinusoidalPositionEncoding(dtype=policy)
    outputs = layer(np.zeros((1, 100, 64), "float32"), positions=positions)
    return relative_error(array(outputs)[0], oracle.sinusoid(positions, 64))


def learned_positions(policy):
    states = held(STATES, policy)
    layer = built(layers.LearnedPositionEmbedding(9, dtype=policy), states)
    return relative_error(array(layer(states)), states + array(layer.embeddings)[:6])


def layer_normalization(policy):
    states = held(STATES, policy)
    layer = built(layers.LayerNormalization(dtype=policy), states)
    params = {"scale": array(layer.gamma), "shift": array(layer.beta)}
    expected = rows(lambda states: oracle.layer_norm(params, states), states)
    return relative_error(array(layer(states)), expected)


def scaled_dot_product_attention(policy):
    query, key, value = (held(heads, policy) for heads in HEAD_STATES)
    layer = layers.ScaledDotProductAttention(dtype=policy)
    outputs = layer(query, key, value, attention_mask=SOURCE_PADDING[:, None])
    expected = rows(
        lambda q, k, v, mask: rows(
            lambda *head: oracle.attention(*head, oracle.key_mask(6, mask))[0], q, k, v
        ),
        query,
        key,
        value,
        SOURCE_PADDING,
    )
    return relative_error(array(outputs), expected)


def multi_head_attention(policy):
    states, source = held(STATES, policy), held(SOURCE, policy)
    layer = built(layers.MultiHeadAttention(HEADS, 8, use_bias=True, dtype=policy), states, source)
    params = attention_parameters(layer)
    outputs = layer(states, source, attention_mask=SOURCE_PADDING[:, None])
    expected = rows(
        lambda query, value, mask: oracle.multi_head_attention(
            params, HEADS, query, value, mask=oracle.key_mask(6, mask)
        )[0],
        states,
        source,
        SOURCE_PADDING,
    )
    return relative_error(array(outputs), expected)


def feed_forward(policy):
    states = held(STATES, policy)
    layer = built(layers.FeedForward(INNER, dtype=policy), states)
    params = feed_forward_parameters(layer)
    expected = rows(functools.partial(oracle.feed_forward, params), states)
    return relative_error(array(layer(states)), expected)


def encoder_block(policy, norm="post"):
    states = held(STATES, policy)
    block = built(layers.EncoderBlock(**BLOCK, norm=norm, dtype=policy), states)
    params = block_parameters(block)
    expected = rows(
        lambda row, mask: oracle.encoder_block(params, HEADS, row, mask, norm=norm),
        states,
        PADDING,
    )
    return relative_error(array(block(states, padding_mask=PADDING)), expected)


def decoder_block(policy, norm="post"):
    states, source = held(STATES, policy), held(SOURCE, policy)
    block = built(layers.DecoderBlock(**BLOCK, norm=norm, dtype=policy), states, source)
    params = block_parameters(block)
    outputs = block(states, source, padding_mask=PADDING, encoder_padding_mask=SOURCE_PADDING)
    expected = rows(
        lambda *row: oracle.decoder_block(params, HEADS, *row, norm),
        states,
        source,
        PADDING,
        SOURCE_PADDING,
    )
    return relative_error(array(outputs), expected)


def encoder(policy):
    states = held(STATES, policy)
    blocks = [layers.EncoderBlock(**BLOCK, dtype=policy) for _ in range(2)]
    stack = built(layers.Encoder(blocks, dropout=0.0, dtype=policy), states)
    params = stack_parameters(stack)
    expected = rows(lambda *row: oracle.encoder(params, HEADS, *row), states, PADDING)
    return relative_error(array(stack(states, padding_mask=PADDING)), expected)


def decoder(policy):
    states, source = held(STATES, policy), held(SOURCE, policy)
    blocks = [layers.DecoderBlock(**BLOCK, dtype=policy) for _ in range(2)]
    stack = built(layers.Decoder(blocks, dropout=0.0, dtype=policy), states, source)
    params = stack_parameters(stack)
    outputs = stack(states, source, padding_mask=PADDING, encoder_padding_mask=SOURCE_PADDING)
    expected = rows(
        lambda *row: oracle.decoder(params, HEADS, *row), states, source, PADDING, SOURCE_PADDING
    )
    return relative_error(array(outputs), expected)


@functools.cache
def model(policy, norm="post"):
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=D_MODEL,
        norm=norm,
        **BLOCK,
    )
    made = Transformer(config, dtype=policy)
    randomize(made)
    return made


def transformer(policy, norm="post"):
    outputs = model(policy, norm)({"source": SOURCE_IDS, "target": IDS})
    expected = transformer_logits(model(policy, norm), SOURCE_IDS, IDS)
    return relative_error(array(outputs), expected)


def transformer_gradient(policy, norm="post"):
    own = model(policy, norm)
    inputs = {"source": SOURCE_IDS, "target": IDS}
    loss = LabelSmoothedCrossEntropy(0.1)
    _, gradients = value_and_gradients(
        lambda: loss(LABELS, own(inputs), WEIGHTS), own.trainable_variables
    )
    expected = transformer_slopes(
        own,
        SOURCE_IDS,
        IDS,
        lambda logits: (oracle_loss.smoothed_cross_entropy(LABELS, logits, 0.1) * WEIGHTS).sum(),
    )
    gradient = gradient_tree(own, gradients, transformer_parameters)
    return relative_error(slopes_of_gradient(gradient), expected)


def loss(policy):
    logits = held(LOGITS, policy)
    tensor = ops.convert_to_tensor(logits, dtype=compute_dtype(policy))
    value = LabelSmoothedCrossEntropy(0.1, reduction="none")(LABELS, tensor)
    return relative_error(array(value), oracle_loss.smoothed_cross_entropy(LABELS, logits, 0.1))
