"""The k largest, ties to the lower index, by every route."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import top_k as top_k_module


@pytest.mark.parametrize("route", ["own", "repaired"])
@pytest.mark.parametrize(
    "size,k",
    [
        (1, 1),
        (7, 3),
        (7, 7),
        (600, 1),
        (600, 8),
        (601, 8),
        (1024, 2),
        (4096, 8),
        (4099, 8),
        (2999, 3),
    ],
)
def test_top_k_equals_a_stable_sort(route, size, k, monkeypatch):
    if route == "repaired":
        monkeypatch.setattr(top_k_module, "_STABLE_BACKENDS", ())
    generator = np.random.default_rng(size + k)
    values = generator.integers(-3, 4, (40, size)).astype("float32")
    values[20:] = generator.standard_normal((20, size)).round(2)
    values[values < -1] = -np.inf
    values[0] = -np.inf
    largest, indices = top_k_module.top_k(ops.convert_to_tensor(values), k)
    expected = np.argsort(-values, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ops.convert_to_numpy(indices), expected)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(largest), np.take_along_axis(values, expected, -1)
    )


def test_long_rows_go_by_blocks_that_divide_them_where_there_are_any():
    for size, k in ((32_000, 8), (37_000, 8), (10_000, 10), (8_192, 4)):
        assert size % top_k_module._block_size(size, k) == 0
    assert top_k_module._block_size(31_991, 8) == 96  # A prime number.
    for size, k in ((32_000, 1), (500, 8), (2, 2)):
        assert top_k_module._block_size(size, k) is None
