"""`project`, and kernels that are stored as their transposes."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.kernels.projection import project

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 9), (2, 4, 5)])
@pytest.mark.parametrize("use_bias", [False, True])
def test_leading_axes_are_kept(shape, use_bias):
    inputs = GENERATOR.normal(size=(*shape, 6)).astype("float32")
    kernel = GENERATOR.normal(size=(6, 7)).astype("float32")
    bias = GENERATOR.normal(size=7).astype("float32") if use_bias else None
    outputs = project(ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel), bias)
    expected = inputs @ kernel + (0 if bias is None else bias)
    np.testing.assert_allclose(ops.convert_to_numpy(outputs), expected, rtol=1e-5, atol=1e-5)
