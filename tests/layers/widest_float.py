"""How exactly a backend can be compared: Keras computes in float64 on TensorFlow alone."""

import pytest

from tests.precision.gradients import has_float64

WIDEST = "float64" if has_float64() else "float32"

# For lists of policies.
FLOAT64 = pytest.param(
    "float64", marks=pytest.mark.tensorflow_only("elsewhere Keras computes in float32 at most")
)
