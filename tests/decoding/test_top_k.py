"""The k largest, ties to the lower index, by every route."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import loop
from tests.decoding.toy_model import array


@pytest.mark.parametrize("route", ["own", "repaired"])
@pytest.mark.parametrize(
    "size,k",
    [(1, 1), (7, 3), (7, 7), (600, 1), (601, 8), (1024, 2), (4096, 1), (4099, 1), (4099, 8)],
)
def test_top_k_equals_a_stable_sort(route, size, k, monkeypatch):
    if route == "repaired":
        monkeypatch.setattr(loop, "_STABLE_BACKENDS", ())
    generator = np.random.default_rng(size + k)
    values = generator.integers(-3, 4, (40, size)).astype("float32")
    values[20:] = generator.standard_normal((20, size)).round(2)
    values[values < -1] = -np.inf
    values[0] = -np.inf
    largest, indices = loop.top_k(ops.convert_to_tensor(values), k)
    expected = np.argsort(-values, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(array(indices), expected)
    np.testing.assert_array_equal(array(largest), np.take_along_axis(values, expected, -1))


@pytest.mark.parametrize("size,k", [(5, 4), (600, 8), (601, 8), (4099, 5)])
def test_rows_of_a_sentence_are_ranked_together(size, k):
    generator = np.random.default_rng(size + k)
    values = generator.integers(-9, 4, (7 * 3, size)).astype("float32")
    terms = generator.integers(-2, 3, (2, 7, 3)).astype("float32")
    terms[0, 1, 1] = -np.inf
    largest, places = loop.top_k(
        ops.convert_to_tensor(values), k, [ops.convert_to_tensor(term) for term in terms]
    )
    sums = (values.reshape(7, 3, size) + terms.sum(0)[..., None]).reshape(7, 3 * size)
    expected = np.argsort(-sums, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(array(places), expected)
    np.testing.assert_array_equal(array(largest), np.take_along_axis(sums, expected, -1))


@pytest.mark.tensorflow_only("sizes are static elsewhere")
@pytest.mark.parametrize("size", [512, 600])
@pytest.mark.parametrize("k", [1, 8])
def test_the_size_may_be_dynamic(size, k):
    import tensorflow as tf

    values = np.random.default_rng(size).integers(-9, 4, (6, size)).astype("float32")
    values[0] = -np.inf
    find = tf.function(
        lambda values, term: loop.top_k(values, k, [term]),
        input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, 3])],
    )
    largest, places = find(values, np.zeros((2, 3), "float32"))
    rows = values.reshape(2, 3 * size)
    expected = np.argsort(-rows, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(largest, np.take_along_axis(rows, expected, -1))


@pytest.mark.parametrize("size, width, k, block_size", [
    (1_000, 1, 1, None), (200, 1, 8, None), (2, 1, 2, None), (32_000, 4, 8, 160),
    (8_000, 4, 8, 80), (37_000, 4, 8, 200), (7_993, 4, 8, 96),
])  # fmt: skip
def test_long_rows_go_by_equal_blocks_of_a_multiple_of_16(size, width, k, block_size):
    assert loop._block_size(size, width, k) == block_size
