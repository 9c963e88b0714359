"""The figures of the table are within what the other tests of the bridges allow."""

import pytest

from tests.bridges.comparison import assert_close
from tests.bridges.errors import BRIDGE_ERRORS
from tests.precision.gradients import has_float64


@pytest.mark.slow
@pytest.mark.parametrize("name", BRIDGE_ERRORS)
def test_the_figures_are_within_the_tolerance(name):
    pytest.importorskip(name.split(".")[0])
    dtype = name.split(", ")[-1]
    if dtype == "float64" and not has_float64():
        pytest.skip("Keras computes float64 in part in float32 on this backend")
    assert_close(BRIDGE_ERRORS[name](), dtype)
