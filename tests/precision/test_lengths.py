"""One token, the longest length of learned positions and one more, and 5,000 positions."""

import functools

import numpy as np
import pytest

from keras_transformer.layers import Encoder, EncoderBlock
from keras_transformer.models import Transformer, TransformerConfig
from tests.layers.oracle_parameters import randomize
from tests.precision.against_oracle import relative_error, transformer_logits
from tests.precision.components import ENCODER_BLOCK, TRANSFORMER, roundings
from tests.precision.gradients import array
from tests.precision.measurements import policies

MAX_LENGTH = 6
LEARNED = {"position": "learned", "max_length": MAX_LENGTH}
TOO_LONG = r"longer than the table of positions, max_length=6"


def transformer(policy, **overrides):
    values = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2}
    values |= {"vocab_size": 11, "intermediate_dim": 12, "dropout": 0.0, **overrides}
    model = Transformer(TransformerConfig(**values), dtype=policy)
    randomize(model)
    return model


# The tests change nothing in these, and building is what takes the time.
@functools.cache
def learned(policy="float32"):
    return transformer(policy, **LEARNED)


@functools.cache
def pre_norm(policy="float32"):
    return transformer(policy, norm="pre")


def ids(source_length, target_length):
    rng = np.random.default_rng(source_length)
    return {
        "source": rng.integers(1, 11, (2, source_length)).astype("int32"),
        "target": rng.integers(1, 11, (2, target_length)).astype("int32"),
    }


# Every layer is measured in every precision by test_components.py.
POLICIES = [
    pytest.param(policy, marks=() if policy in ("float32", "mixed_bfloat16") else pytest.mark.slow)
    for policy in policies()
]


@pytest.mark.parametrize("policy", POLICIES)
def test_one_token_on_each_side(policy):
    for model in (learned(policy), pre_norm(policy)):
        expected = transformer_logits(model, **ids(1, 1))
        bound = roundings(TRANSFORMER)(policy)
        assert relative_error(array(model(ids(1, 1))), expected) <= bound


@pytest.mark.parametrize("policy", POLICIES)
def test_the_longest_length_has_its_positions(policy):
    model = learned(policy)
    inputs = ids(MAX_LENGTH, MAX_LENGTH)
    expected = transformer_logits(model, **inputs)
    assert relative_error(array(model(inputs)), expected) <= roundings(TRANSFORMER)(policy)


def test_one_more_is_refused_by_name():
    for lengths in ((MAX_LENGTH + 1, 2), (2, MAX_LENGTH + 1)):
        with pytest.raises(ValueError, match=TOO_LONG):
            learned()(ids(*lengths))
        # A model of its own: on JAX, Keras leaves a model without weights where `predict` fails.
        with pytest.raises(ValueError, match=TOO_LONG):
            transformer("float32", **LEARNED).predict(ids(*lengths), verbose=0)


@pytest.mark.tensorflow_only("graphs of unknown lengths are TensorFlow's")
def test_one_more_is_refused_in_a_graph_of_unknown_length():
    """Where TensorFlow's own lookup would give zeros on a GPU."""
    import tensorflow as tf

    specification = {name: tf.TensorSpec((None, None), "int32") for name in ("source", "target")}
    model = tf.function(learned(), input_signature=[specification])
    assert model(ids(MAX_LENGTH, MAX_LENGTH)).shape == (2, MAX_LENGTH, 11)
    for lengths in ((MAX_LENGTH + 1, 2), (2, MAX_LENGTH + 1)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=TOO_LONG):
            model(ids(*lengths))


def encoder(policy):
    blocks = [EncoderBlock(num_heads=1, intermediate_dim=8, dropout=0.0, dtype=policy)]
    stack = Encoder(blocks, dropout=0.0, dtype=policy)
    stack.build((None, None, 8))
    randomize(stack)
    return stack


@pytest.mark.slow
def test_an_encoder_of_5000_positions_is_finite_and_near_to_the_widest_precision():
    inputs = np.random.default_rng(0).normal(size=(1, 5001, 8)).astype("float32")
    widest, *others = policies()
    stack = encoder(widest)
    expected, weights = array(stack(inputs)), stack.get_weights()
    assert np.isfinite(expected).all()
    for policy in others:
        stack = encoder(policy)
        stack.set_weights(weights)
        # The inputs and weights are rounded too; twice, for sums of 5,000 terms and 40,000 results.
        bound = 2 * roundings(2 + 2 + ENCODER_BLOCK)(policy)
        assert relative_error(array(stack(inputs)), expected) <= bound, policy
