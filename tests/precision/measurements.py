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
from tests.layers import oracle_outputs
from tests.layers.harness import call
from tests.layers.oracle_parameters import randomize, transformer_parameters
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
HEAD_STATES = {
    name: RNG.normal(size=(2, HEADS, length, 8))
    for name, length in (("query", 6), ("key", 7), ("value", 7))
}
LOGITS = RNG.normal(size=(2, 6, VOCABULARY), scale=4.0)
PADDING = np.arange(6) < np.array([[6], [4]])
SOURCE_PADDING = np.arange(7) < np.array([[5], [7]])
IDS = RNG.integers(1, VOCABULARY, (2, 6)).astype("int32") * PADDING
SOURCE_IDS = RNG.integers(1, VOCABULARY, (2, 7)).astype("int32") * SOURCE_PADDING
MODEL_INPUTS = {"source": SOURCE_IDS, "target": IDS}
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


def measured(make, expected, **inputs):
    """Returns the measurement of a layer on its call arguments, the first positional."""

    def measure(policy):
        values = {
            name: held(value, policy) if value.dtype.kind == "f" else value
            for name, value in inputs.items()
        }
        layer = make(dtype=policy)
        call(layer, values)
        randomize(layer)
        return relative_error(array(call(layer, values)), expected(layer, values))

    return measure


def with_two(block_class, stack_class):
    """Returns a function of a policy that makes a stack of two blocks."""

    def make(dtype):
        blocks = [block_class(**BLOCK, dtype=dtype) for _ in range(2)]
        return stack_class(blocks, dropout=0.0, dtype=dtype)

    return make


embedding = functools.partial(layers.TiedEmbedding, VOCABULARY, D_MODEL)
embedding_lookup = measured(embedding, oracle_outputs.embedded, inputs=IDS)
learned_positions = measured(
    functools.partial(layers.LearnedPositionEmbedding, 9),
    oracle_outputs.learned_positions,
    inputs=STATES,
)
layer_normalization = measured(
    layers.LayerNormalization, oracle_outputs.layer_normalization, inputs=STATES
)
scaled_dot_product_attention = measured(
    layers.ScaledDotProductAttention,
    lambda layer, x: oracle_outputs.scaled_dot_product_attention(layer, x)[0],
    **HEAD_STATES,
    attention_mask=SOURCE_PADDING[:, None],
)
multi_head_attention = measured(
    functools.partial(layers.MultiHeadAttention, HEADS, 8, use_bias=True),
    lambda layer, x: oracle_outputs.multi_head_attention(layer, x)[0],
    query=STATES,
    value=SOURCE,
    attention_mask=SOURCE_PADDING[:, None],
)
feed_forward = measured(
    functools.partial(layers.FeedForward, INNER), oracle_outputs.feed_forward, inputs=STATES
)
SENTENCES = {"inputs": STATES, "padding_mask": PADDING}
PAIRS = {**SENTENCES, "encoder_outputs": SOURCE, "encoder_padding_mask": SOURCE_PADDING}
encoder = measured(with_two(layers.EncoderBlock, layers.Encoder), oracle_outputs.stack, **SENTENCES)
decoder = measured(with_two(layers.DecoderBlock, layers.Decoder), oracle_outputs.stack, **PAIRS)


def encoder_block(policy, norm="post"):
    make = functools.partial(layers.EncoderBlock, **BLOCK, norm=norm)
    return measured(make, oracle_outputs.encoder_block, **SENTENCES)(policy)


def decoder_block(policy, norm="post"):
    make = functools.partial(layers.DecoderBlock, **BLOCK, norm=norm)
    return measured(make, oracle_outputs.decoder_block, **PAIRS)(policy)


def embedding_logits(policy):
    layer, states = embedding(dtype=policy), held(STATES, policy)
    layer(IDS)
    randomize(layer)
    return relative_error(array(layer(states, reverse=True)), states @ array(layer.embeddings).T)


def sinusoids(policy):
    """At the first 50 positions and those up to 5,000."""
    positions = np.r_[:50, LAST_POSITION - 49 : LAST_POSITION + 1].astype("int32")
    layer = layers.SinusoidalPositionEncoding(dtype=policy)
    outputs = layer(np.zeros((1, 100, 64), "float32"), positions=positions)
    return relative_error(array(outputs)[0], oracle.sinusoid(positions, 64))


@functools.cache
def model(policy, norm="post"):
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": D_MODEL, **BLOCK}
    config = TransformerConfig(vocab_size=VOCABULARY, norm=norm, **sizes)
    transformer = Transformer(config, dtype=policy)
    randomize(transformer)
    return transformer


def transformer(policy, norm="post"):
    outputs = model(policy, norm)(MODEL_INPUTS)
    return relative_error(array(outputs), transformer_logits(model(policy, norm), **MODEL_INPUTS))


def transformer_gradient(policy, norm="post"):
    transformer, loss = model(policy, norm), LabelSmoothedCrossEntropy(0.1)
    _, gradients = value_and_gradients(
        lambda: loss(LABELS, transformer(MODEL_INPUTS), WEIGHTS), transformer.trainable_variables
    )
    expected = transformer_slopes(
        transformer,
        SOURCE_IDS,
        IDS,
        lambda logits: (oracle_loss.smoothed_cross_entropy(LABELS, logits, 0.1) * WEIGHTS).sum(),
    )
    gradient = gradient_tree(transformer, gradients, transformer_parameters)
    return relative_error(slopes_of_gradient(gradient), expected)


def loss(policy):
    logits = held(LOGITS, policy)
    tensor = ops.convert_to_tensor(logits, dtype=compute_dtype(policy))
    value = LabelSmoothedCrossEntropy(0.1, reduction="none")(LABELS, tensor)
    return relative_error(array(value), oracle_loss.smoothed_cross_entropy(LABELS, logits, 0.1))
