"""Learned positions: a table added by position, and no silent overflow."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import LearnedPositionEmbedding
from tests.layers.oracle_parameters import array
from tests.layers.widest_float import WIDEST, within

INPUTS = np.random.default_rng(2).normal(size=(2, 4, 6))


def test_adds_the_row_of_each_position():
    layer = LearnedPositionEmbedding(10, dtype=WIDEST)
    outputs = array(layer(INPUTS))
    table = array(layer.embeddings)
    np.testing.assert_allclose(outputs, INPUTS + table[:4], atol=within(1e-12))
    for positions in (np.array([9, 0, 3, 3]), np.array([[0, 1, 2, 3], [6, 7, 8, 9]])):
        outputs = array(layer(INPUTS, positions=positions.astype("int32")))
        np.testing.assert_allclose(outputs, INPUTS + table[positions], atol=within(1e-12))


def test_initial_std_is_that_of_the_token_embedding():
    layer = LearnedPositionEmbedding(256)
    layer.build((None, None, 512))
    np.testing.assert_allclose(array(layer.embeddings).std(), 512**-0.5, rtol=0.01)


def test_the_mask_of_the_inputs_is_passed_on():
    inputs = keras.layers.Embedding(5, 4, mask_zero=True)(np.array([[1, 0]]))
    assert array(LearnedPositionEmbedding(3)(inputs)._keras_mask).tolist() == [[1, 0]]


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
