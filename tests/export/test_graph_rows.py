"""Rows are shared out to chunks: each once, in order, and never more at a time than allowed."""

import os
import threading

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is written on the TensorFlow backend", allow_module_level=True)

from keras_transformer.export.served_module import in_chunks  # noqa: E402


@pytest.mark.parametrize(
    "num_rows, chunk_size, num_streams, sizes",
    [
        (10, 100, 1, [10]),
        (10, 4, 1, [4, 4, 2]),
        # Shared out evenly,
        (10, 100, 3, [4, 4, 2]),
        (32, 100, 2, [16, 16]),
        (1, 100, 2, [1]),
        (3, 100, 8, [1, 1, 1]),
        # with those of all streams together within the bound, or a row each.
        (10, 4, 2, [2, 2, 1, 2, 2, 1]),
        (3, 2, 4, [1, 1, 1]),
        (0, 4, 2, []),
    ],
)
def test_rows_are_shared_out(num_rows, chunk_size, num_streams, sizes):
    @tf.function
    def chunks(num_rows, chunk_size):
        def function(start, end):
            rows = tf.range(start, end)
            return {"row": rows, "size": tf.fill(tf.shape(rows), end - start)}

        empty = {"row": tf.zeros([0], tf.int32), "size": tf.zeros([0], tf.int32)}
        return in_chunks(function, num_rows, chunk_size, empty, num_streams)

    found = chunks(tf.constant(num_rows), tf.constant(chunk_size))
    assert found["row"].numpy().tolist() == list(range(num_rows))
    assert found["size"].numpy().tolist() == np.repeat(sizes, sizes).tolist()


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="TensorFlow has a thread for each core"
)
def test_streams_run_at_the_same_time():
    """Each waits for the other; a search, which is a loop that reads variables, too."""
    barrier, variable = threading.Barrier(2, timeout=60), tf.Variable([1, 1])

    def meet(start):
        barrier.wait()
        return start

    @tf.function
    def chunks():
        def function(start, end):
            def step(count, total):
                start_here = tf.numpy_function(meet, [start], tf.int32, stateful=False)
                return count + 1, total + variable + tf.ensure_shape(start_here, [])

            rows = tf.zeros(end - start, tf.int32)
            _, rows = tf.while_loop(lambda count, _: count < 3, step, (tf.constant(0), rows))
            return {"row": rows}

        return in_chunks(function, 4, 4, {"row": tf.zeros([0], tf.int32)}, num_streams=2)

    assert chunks()["row"].numpy().tolist() == [3, 3, 9, 9]
