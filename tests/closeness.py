"""Floats that should be equal, but for the rounding of whatever kernel computed them.

Another processor, number of threads, library or backend adds the terms of a sum in another order,
and rounds elsewhere. So a test that compares floats says what was computed, and names no tolerance:

    tolerance = 4 * epsilon(dtype) * sqrt(sum_length) * largest

Independent roundings of `sum_length` terms add up as the root of their number. They are relative to
the largest value, because small results, too, come from sums of large terms. With the default of
1,024 terms the tolerance is 1.5e-5 of the largest value in float32, and 2.8e-14 in float64.

What is promised to the bit is compared by `np.testing.assert_array_equal`. What is measured, such
as a share of random numbers or the error of quantization, has a tolerance of its own.
"""

import ml_dtypes
import numpy as np


def assert_close(actual, expected, dtype="float32", sum_length=None, scale=0.0, err_msg=""):
    """Checks that two results are equal up to rounding.

    Args:
        actual: A float, or floats that NumPy can make an array of.
        expected: The same, of the shape of `actual`, or one float that is expected everywhere.
            Infinities and NaNs must be at the same positions.
        dtype: Dtype or Keras policy that the less precise of the two was computed with.
        sum_length: Number of terms that are added, sum after sum, on the longest way from an input
            to a result. 1,024 by default, for a small model or a few steps of its training; 4 in
            half precision, where kernels add in float32 and round whole sums.
        scale: Floats that also count as values, where results are small differences of large
            numbers: weights, for the step between them. 1.0 for logarithms of probabilities, since
            those of probabilities near 1 are that imprecise.
        err_msg: What the message begins with.

    Raises:
        AssertionError: If a difference exceeds the tolerance.
    """
    actual, expected = np.asarray(actual, "float64"), np.asarray(expected, "float64")
    begin = f"{err_msg}: " if err_msg else ""
    if expected.ndim and actual.shape != expected.shape:
        raise AssertionError(f"{begin}shape {actual.shape}, where {expected.shape} is expected")
    expected = np.broadcast_to(expected, actual.shape)
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~is_finite], expected[~is_finite], err_msg)
    epsilon = float(ml_dtypes.finfo(dtype.removeprefix("mixed_")).eps)
    if sum_length is None:
        sum_length = 4 if epsilon > 1e-4 else 1024
    largest = max(_largest(expected[is_finite]), _largest(scale))
    tolerance = 4 * epsilon * np.sqrt(sum_length) * largest
    differences = np.abs(actual[is_finite] - expected[is_finite])
    # Not `>`, which is False of NaN.
    if not (differences <= tolerance).all():
        raise AssertionError(
            f"{begin}the largest difference is {differences.max():.3g}; the tolerance is "
            f"{tolerance:.3g}, the largest value {largest:.3g}"
        )


def assert_all_close(actual, expected, dtype="float32", sum_length=None):
    """Checks lists or dicts of arrays, such as all weights of a model, on one scale.

    A bias of a trained model is as imprecise as the weights that it was computed with.
    """
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        pairs = {name: (actual[name], value) for name, value in expected.items()}
    else:
        pairs = dict(enumerate(zip(actual, expected, strict=True)))
    scale = [_largest(value) for _, value in pairs.values()]
    for name, pair in pairs.items():
        assert_close(*pair, dtype, sum_length, scale, err_msg=str(name))


def _largest(values):
    return np.abs(np.asarray(values, "float64")).max(initial=0)
