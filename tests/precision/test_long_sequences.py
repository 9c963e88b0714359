"""5,000 positions: each sinusoid as exact as its dtype, and an encoder that stays exact."""

import numpy as np
import pytest

from keras_transformer.layers import Encoder, EncoderBlock, SinusoidalPositionEncoding
from tests.layers.oracle_parameters import randomize
from tests.oracle import transformer as oracle
from tests.precision.against_oracle import relative_error
from tests.precision.components import ENCODER_BLOCK, roundings, sinusoid_bound
from tests.precision.gradients import array
from tests.precision.measurements import policies

LENGTH = 5001


@pytest.fixture(scope="module")
def sinusoids():
    return oracle.sinusoid(range(LENGTH), 8)


@pytest.mark.parametrize("policy", policies())
def test_sinusoids_are_within_the_rounding_of_the_compute_dtype(policy, sinusoids):
    """In bfloat16 arithmetic they would be off by 2, in plain float32 by 3e-4."""
    layer = SinusoidalPositionEncoding(dtype=policy)
    values = array(layer(np.zeros((1, LENGTH, 8), "float32")))[0]
    assert np.abs(values - sinusoids).max() <= sinusoid_bound(policy)


def encoder(policy):
    blocks = [EncoderBlock(num_heads=1, intermediate_dim=8, dropout=0.0, dtype=policy)]
    stack = Encoder(blocks, dropout=0.0, dtype=policy)
    stack.build((None, None, 8))
    randomize(stack)
    return stack


@pytest.mark.slow
def test_an_encoder_of_5000_positions_is_finite_and_near_to_the_widest_precision():
    inputs = np.random.default_rng(0).normal(size=(1, LENGTH, 8)).astype("float32")
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
