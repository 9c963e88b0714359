"""Sinusoids: the formula of the paper in every precision. Learned positions: no silent overflow."""

import numpy as np
import pytest

from keras_transformer.layers import (
    AttentionPosition,
    LearnedPositionEmbedding,
    MultiHeadAttention,
    SinusoidalPositionEncoding,
)
from tests.closeness import assert_close
from tests.layers.harness import WIDEST
from tests.layers.oracle_parameters import array
from tests.oracle import transformer as oracle
from tests.precision.components import sinusoid_bound
from tests.precision.measurements import LAST_POSITION, policies


def encoding(length, d_model, dtype="float32", **kwargs):
    layer = SinusoidalPositionEncoding(dtype=dtype)
    return array(layer(np.zeros((1, length, d_model), "float32"), **kwargs))[0]


def test_last_pair_at_512_has_the_papers_wavelength():
    """Pair 255: 10,000^(510/512) = 9646.616; tensor2tensor's spacing would have 10,000."""
    values = encoding(101, 512)[100]
    assert_close(values[510], np.sin(100 / 9646.6162), sum_length=16, scale=1.0)


def test_a_shift_of_sinusoids_is_a_linear_map():
    """Section 3.5: PE(pos + k) is a linear function of PE(pos), the same for every pos."""
    values = encoding(60, 16)
    frequencies = 10_000.0 ** (-np.arange(0, 16, 2) / 16)
    for shift in (1, 5, 17):
        matrix = np.zeros((16, 16))
        for pair, angle in enumerate(shift * frequencies):
            turn = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
            matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = turn
        assert_close(values[:-shift] @ matrix.T, values[shift:])


@pytest.mark.parametrize("policy", policies())
def test_sinusoids_are_within_the_rounding_of_the_compute_dtype(policy):
    """In bfloat16 arithmetic they would be off by 2, in plain float32 by 3e-4."""
    positions = np.r_[:20, 1000:1020, LAST_POSITION - 19 : LAST_POSITION + 1].astype("int32")
    values = encoding(60, 128, policy, positions=positions)
    assert np.abs(values - oracle.sinusoid(positions, 128)).max() <= sinusoid_bound(policy)


INPUTS = np.random.default_rng(2).normal(size=(2, 4, 6))


@pytest.mark.parametrize("make, shape, message", [
    (LearnedPositionEmbedding, (2, 4, 6), r"max_length=3.*Received: inputs.shape=\(2, 4, 6\)"),
    (LearnedPositionEmbedding, (5, 6), "`inputs` must have the shape .batch, length, d_model"),
    (SinusoidalPositionEncoding, (5, 6), "`inputs` must have the shape .batch, length, d_model"),
    (SinusoidalPositionEncoding, (1, 2, 7), r"must be even.*Received: inputs_shape=\(1, 2, 7\)"),
])  # fmt: skip
def test_inputs_without_positions_are_refused(make, shape, message):
    with pytest.raises(ValueError, match=message):
        make(3)(np.zeros(shape))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_positions_may_differ_from_row_to_row(dtype):
    positions = np.array([[0, 1, 2, 3], [6, 3, 0, 0]])
    layer = LearnedPositionEmbedding(10, dtype=WIDEST)
    found = layer(INPUTS, positions=positions.astype(dtype))
    assert_close(array(found), INPUTS + array(layer.embeddings)[positions], dtype=WIDEST)
    layer = SinusoidalPositionEncoding(dtype=WIDEST)
    found = layer(INPUTS, positions=positions.astype(dtype))
    want = [oracle.sinusoid(row, 6) for row in positions]
    assert_close(array(found), INPUTS + want, dtype=WIDEST)


@pytest.mark.tensorflow_only("lengths are known elsewhere")
def test_positions_beyond_the_table_are_no_numbers_under_xla():
    """XLA leaves out the check that raises an error without it."""
    import tensorflow as tf

    layer = LearnedPositionEmbedding(4)
    layer.build((None, None, 2))
    of_any_length = [tf.TensorSpec([None, None, 2])]
    compiled = tf.function(layer, jit_compile=True, input_signature=of_any_length)
    assert np.isfinite(compiled(tf.zeros([1, 4, 2]))).all()
    assert np.isnan(compiled(tf.zeros([1, 6, 2]))[:, 4:]).all()
    given = tf.function(lambda x: layer(x, positions=[3, 4]), jit_compile=True)
    assert np.isnan(given(tf.zeros([1, 2, 2]))).tolist() == [[[False] * 2, [True] * 2]]


def test_learned_positions_begin_as_small_as_embeddings():
    layer = LearnedPositionEmbedding(2000)
    layer.build((None, None, 64))
    np.testing.assert_allclose(array(layer.embeddings).std(), 1 / 8, rtol=0.01)


class Halves(AttentionPosition):
    """A position of a user, as the class says: it overrides `rotate`."""

    def rotate(self, states, positions):
        return states / 2


def test_a_user_defines_a_position():
    inputs = np.random.default_rng(3).normal(size=(2, 5, 8)).astype("float32")
    layer, plain = MultiHeadAttention(2, 4, position=Halves()), MultiHeadAttention(2, 4)
    layer(inputs, inputs), plain(inputs, inputs)
    for name in ("query", "key", "value", "output"):
        kernel = array(getattr(layer, f"{name}_dense").kernel)
        is_halved = name in ("query", "key")
        getattr(plain, f"{name}_dense").kernel.assign(kernel / 2 if is_halved else kernel)
    assert_close(array(layer(inputs, inputs)), array(plain(inputs, inputs)))
