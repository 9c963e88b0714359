"""The oracle's loss: its targets are distributions, its least value is their entropy."""

import numpy as np
import pytest

from tests.closeness import assert_close
from tests.oracle import loss as oracle


def test_targets_computed_by_hand():
    t2t = oracle.soft_targets([1], 5, 0.2, "t2t")
    assert_close(t2t, [[0.05, 0.8, 0.05, 0.05, 0.05]], "float64")
    keras = oracle.soft_targets([1], 5, 0.2, "keras")
    assert_close(keras, [[0.04, 0.84, 0.04, 0.04, 0.04]], "float64")


@pytest.mark.parametrize("convention", ["t2t", "keras"])
def test_least_loss_is_the_entropy_of_the_target(convention):
    """1.3769 nats for 37,000 ids and a smoothing of 0.1, where the prediction is the target."""
    target = oracle.soft_targets([7], 37_000, 0.1, convention)
    entropy = -(target * np.log(target)).sum()
    if convention == "t2t":
        assert abs(entropy - 1.3769) < 5e-5
    loss = oracle.smoothed_cross_entropy([7], np.log(target), 0.1, convention)
    assert_close(loss, [entropy], "float64")
    gradient = oracle.smoothed_cross_entropy_gradient([7], np.log(target), 0.1, convention)
    assert_close(gradient, 0.0, "float64", scale=1.0)
