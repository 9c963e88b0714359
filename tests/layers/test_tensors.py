"""Masks of rows that hold several sentences."""

import numpy as np

from keras_transformer.layers.tensors import segment_mask, segment_positions
from tests.layers.oracle_parameters import array

SEGMENTS = np.array([[1, 1, 2, 0], [1, 2, 2, 2]], "int32")


def test_tokens_see_their_own_segment_from_its_first_position_on():
    expected = SEGMENTS[:, :, None] == SEGMENTS[:, None, :3]
    np.testing.assert_array_equal(array(segment_mask(SEGMENTS, SEGMENTS[:, :3])), expected)
    positions = array(segment_positions(SEGMENTS))
    np.testing.assert_array_equal(positions, [[0, 1, 0, 0], [0, 0, 1, 2]])
    padding = np.array([[1, 1, 0, 0, 0]], "int32")
    np.testing.assert_array_equal(array(segment_positions(padding)), [[0, 1, 0, 0, 0]])
    assert tuple(segment_positions(np.ones((2, 0), "int32")).shape) == (2, 0)
