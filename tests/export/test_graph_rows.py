"""Rows are cut into chunks: each row once, in order, and never more at a time than allowed."""

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is written on the TensorFlow backend", allow_module_level=True)

from keras_transformer.decoding import GreedySearch  # noqa: E402
from keras_transformer.export import served_module  # noqa: E402
from keras_transformer.export.signatures import TranslatorFunctions  # noqa: E402


@pytest.mark.parametrize(
    "num_rows, chunk_size, sizes", [(10, 100, [10]), (10, 4, [4, 4, 2]), (0, 4, [])]
)
def test_rows_are_cut_into_chunks(num_rows, chunk_size, sizes):
    @tf.function
    def chunks(num_rows, chunk_size):
        def function(start, end):
            rows = tf.range(start, end)
            return {"row": rows, "size": tf.fill(tf.shape(rows), end - start)}

        empty = {"row": tf.zeros([0], tf.int32), "size": tf.zeros([0], tf.int32)}
        return served_module.in_chunks(function, num_rows, chunk_size, empty)

    found = chunks(tf.constant(num_rows), tf.constant(chunk_size))
    assert found["row"].numpy().tolist() == list(range(num_rows))
    assert found["size"].numpy().tolist() == np.repeat(sizes, sizes).tolist()


@pytest.mark.parametrize("lengths, starts", [
    ([9, 9, 9, 9], [0, 2, 4]),  # even shares of a small request
    ([9], [0, 1]),
    ([], [0]),
    ([400, 30, 20, 10, 10, 10, 10, 10, 10, 10], [0, 1, 4, 9, 10]),  # at most 100 positions
    ([5] * 300, [0, 20, *range(40, 301, 20)]),
])  # fmt: skip
def test_long_rows_come_in_small_chunks(translator, monkeypatch, lengths, starts):
    monkeypatch.setattr(type(translator), "max_batch_tokens", 200)
    arguments = None, translator, translator.model, GreedySearch()
    functions = TranslatorFunctions(*arguments, num_streams=2)
    found = functions._starts_of_chunks(tf.constant(lengths, tf.int32), max_rows=64)
    assert found.numpy().tolist() == starts
