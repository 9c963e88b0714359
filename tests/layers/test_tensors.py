"""Masks of rows that hold several sentences."""

import numpy as np

from keras_transformer.layers.tensors import segment_mask, segment_positions
from tests.layers.oracle_parameters import array

QUERIES = np.array([[1, 1, 2, 0], [1, 2, 2, 2]], "int32")
KEYS = np.array([[1, 2, 2], [1, 1, 2]], "int32")


def test_tokens_see_their_own_segment():
    expected = [
        [[1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]],
        [[1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]],
    ]
    np.testing.assert_array_equal(array(segment_mask(QUERIES, KEYS)), np.array(expected, bool))


def test_positions_begin_anew_in_each_segment():
    expected = [[0, 1, 0, 0], [0, 0, 1, 2]]
    np.testing.assert_array_equal(array(segment_positions(QUERIES)), expected)


def test_no_tokens_have_no_positions():
    for shape in ((0, 3), (2, 0), (0, 0)):
        assert tuple(segment_positions(np.ones(shape, "int32")).shape) == shape
