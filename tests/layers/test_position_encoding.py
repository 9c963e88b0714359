"""Sinusoids: the formula of the paper in every precision. Learned positions: no silent overflow."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import LearnedPositionEmbedding, SinusoidalPositionEncoding
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array
from tests.layers.widest_float import WIDEST
from tests.oracle import transformer as oracle
from tests.precision.components import sinusoid_bound
from tests.precision.measurements import LAST_POSITION, policies


def encoding(length, d_model, dtype="float32", **kwargs):
    layer = SinusoidalPositionEncoding(dtype=dtype)
    return array(layer(np.zeros((1, length, d_model), "float32"), **kwargs))[0]


def test_values_computed_by_hand():
    """d_model 4: wavelengths 1 and 100, sine and cosine interleaved, from position 0."""
    assert_close(
        encoding(3, 4),
        [
            [0.0, 1.0, 0.0, 1.0],
            [0.841470985, 0.540302306, 0.009999833, 0.999950000],
            [0.909297427, -0.416146837, 0.019998667, 0.999800007],
        ],
    )


def test_last_pair_at_512_has_the_papers_wavelength():
    """Pair 255: 10,000^(510/512) = 9646.616; tensor2tensor's spacing would have 10,000."""
    values = encoding(101, 512)[100]
    assert_close(values[510], np.sin(100 / 9646.6162), sum_length=16, scale=1.0)


@pytest.mark.parametrize("policy", policies())
def test_sinusoids_are_within_the_rounding_of_the_compute_dtype(policy):
    """In bfloat16 arithmetic they would be off by 2, in plain float32 by 3e-4."""
    positions = np.r_[:20, 1000:1020, LAST_POSITION - 19 : LAST_POSITION + 1].astype("int32")
    values = encoding(60, 128, policy, positions=positions)
    assert np.abs(values - oracle.sinusoid(positions, 128)).max() <= sinusoid_bound(policy)


def test_positions_may_differ_from_row_to_row():
    layer = SinusoidalPositionEncoding(dtype=WIDEST)
    positions = np.array([[0, 1, 2], [7, 3, 0]], "int32")
    inputs = np.ones((2, 3, 6))
    want = [1 + oracle.sinusoid(row, 6) for row in positions]
    assert_close(array(layer(inputs, positions=positions)), want, dtype=WIDEST)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"must be even.*Received: inputs_shape=\(1, 2, 7\)"):
        SinusoidalPositionEncoding()(ops.zeros((1, 2, 7)))


INPUTS = np.random.default_rng(2).normal(size=(2, 4, 6))


def test_adds_the_row_of_each_position():
    layer = LearnedPositionEmbedding(10, dtype=WIDEST)
    outputs = array(layer(INPUTS))
    table = array(layer.embeddings)
    assert_close(outputs, INPUTS + table[:4], dtype=WIDEST)
    for positions in (np.array([9, 0, 3, 3]), np.array([[0, 1, 2, 3], [6, 7, 8, 9]])):
        outputs = array(layer(INPUTS, positions=positions.astype("int32")))
        assert_close(outputs, INPUTS + table[positions], dtype=WIDEST)


def test_a_longer_input_is_refused():
    layer = LearnedPositionEmbedding(3)
    with pytest.raises(ValueError, match=r"max_length=3.*Received: inputs.shape=\(2, 4, 6\)"):
        layer(INPUTS)
    with pytest.raises(ValueError, match="max_length=3"):
        layer(keras.KerasTensor((None, 4, 6)))


def test_a_longer_input_of_unknown_length_is_refused_too():
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, LearnedPositionEmbedding(3)(inputs))
    assert model(INPUTS[:, :3]).shape == (2, 3, 6)
    with pytest.raises(Exception, match="max_length|out of range|indices|not in"):
        model.predict(INPUTS, verbose=0)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_positions_may_be_of_any_number_type(dtype):
    layer = LearnedPositionEmbedding(9)
    inputs, positions = np.zeros((2, 3, 4), "float32"), np.array([[0, 3, 8], [2, 2, 1]])
    found = array(layer(inputs, positions=positions.astype(dtype)))
    np.testing.assert_array_equal(found, array(layer.embeddings)[positions])
