"""The k largest, ties to the lower index, by every route."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import loop
from tests.decoding.toy_model import array


def check(find, size, k, num_terms=0):
    """Compare `find(values, terms)` with a stable sort, for seven sentences of three hypotheses."""
    generator, width = np.random.default_rng(size + k), 3 if num_terms else 1
    values = generator.integers(-9, 4, (7 * width, size)).astype("float32")
    values[values < -7] = -np.inf
    values[0] = -np.inf
    terms = generator.integers(-2, 3, (num_terms, 7, width)).astype("float32")
    terms[:1, 1, 1:] = -np.inf
    largest, places = find(
        ops.convert_to_tensor(values), [ops.convert_to_tensor(term) for term in terms]
    )
    sums = (values.reshape(7, width, size) + terms.sum(0)[..., None]).reshape(7, width * size)
    expected = np.argsort(-sums, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(array(places), expected)
    np.testing.assert_array_equal(array(largest), np.take_along_axis(sums, expected, -1))


@pytest.mark.parametrize("route", ["own", "repaired"])
@pytest.mark.parametrize("size, k, num_terms", [
    (1, 1, 0), (7, 3, 0), (600, 1, 0), (601, 8, 0), (1024, 2, 0), (4096, 1, 0), (4099, 8, 0),
    (5, 4, 2), (600, 8, 2), (601, 8, 2), (4099, 5, 2),
])  # fmt: skip
def test_top_k_equals_a_stable_sort(route, size, k, num_terms, monkeypatch):
    if route == "repaired":
        monkeypatch.setattr(loop, "_STABLE_BACKENDS", ())
    check(lambda values, terms: loop.top_k(values, k, terms), size, k, num_terms)


@pytest.mark.tensorflow_only("sizes are static elsewhere")
@pytest.mark.parametrize("size, k", [(512, 8), (600, 1), (600, 8)])
def test_the_size_may_be_dynamic(size, k):
    import tensorflow as tf

    find = tf.function(
        lambda values, term: loop.top_k(values, k, [term]),
        input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, 3])],
    )
    check(lambda values, terms: find(values, *terms), size, k, num_terms=1)


@pytest.mark.parametrize("size, width, k, block_size", [
    (1_000, 1, 1, None), (200, 1, 8, None), (2, 1, 2, None), (32_000, 4, 8, 160),
    (8_000, 4, 8, 80), (37_000, 4, 8, 200), (7_993, 4, 8, 96),
])  # fmt: skip
def test_long_rows_go_by_equal_blocks_of_a_multiple_of_16(size, width, k, block_size):
    assert loop._block_size(size, width, k) == block_size
