"""Rows are cut into chunks: each row once, in order, and never more at a time than allowed."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.inference.served_functions import starts_of_chunks
from keras_transformer.translation.signatures import in_chunks


@pytest.mark.parametrize("num_rows, chunk_size, sizes", [(10, 4, [4, 4, 2]), (0, 4, [])])
def test_rows_are_cut_into_chunks(num_rows, chunk_size, sizes):
    @tf.function
    def chunks(num_rows, chunk_size):
        def function(start, end):
            rows = tf.range(start, end)
            return tf.stack([rows, tf.fill(tf.shape(rows), end - start)], axis=1)

        return in_chunks(function, num_rows, chunk_size, tf.zeros([0, 2], tf.int32))

    rows, sizes_found = chunks(tf.constant(num_rows), tf.constant(chunk_size)).numpy().T
    assert rows.tolist() == list(range(num_rows))
    assert sizes_found.tolist() == np.repeat(sizes, sizes).tolist()


@pytest.mark.parametrize("lengths, starts", [
    ([9, 9, 9, 9], [0, 2, 4]),  # even shares of a small request
    ([], [0]),
    ([400, 30, 20, 10, 10, 10, 10, 10, 10, 10], [0, 1, 4, 9, 10]),  # at most 100 positions
])  # fmt: skip
def test_long_rows_come_in_small_chunks(lengths, starts):
    lengths = tf.constant(lengths, tf.int32)
    found = starts_of_chunks(lengths, max_positions=100, max_rows=64, num_streams=2)
    assert found.numpy().tolist() == starts
