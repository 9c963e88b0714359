"""A fixture that saves the tests of `train` most of their time."""

import pytest

from tests.training.uncompiled import uncompiled


@pytest.fixture(name="uncompiled")
def _uncompiled():
    """Trains in this test without compiling."""
    with uncompiled():
        yield
