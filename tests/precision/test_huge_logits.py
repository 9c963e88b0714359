"""The loss at logits of 10,000: as exact as the logits are, finite, and so is its gradient.

The bound is 4 eps of float32 times the loss, or times 1 if the loss is less, since probabilities
near 1 are rounded. With smoothing it is 4 eps times the share of the logits' mean: a mean of
numbers of 10,000 has a rounding of its own.
"""

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_transformer.training import LabelSmoothedCrossEntropy, TokenLoss
from tests.oracle import loss as oracle
from tests.precision.gradients import array, value_and_gradients

EPS = np.finfo("float32").eps
SIZE = 1e4
RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 9, (6, 5)).astype("int32")
ONES = np.ones(LABELS.shape)
SMALL = RNG.normal(0, 1, (6, 5, 9))
LOGITS = {
    "spread": np.sign(SMALL) * SIZE,
    "shifted_up": SIZE + 16 * np.round(SMALL),
    "shifted_down": -SIZE + 16 * np.round(SMALL),
    "equal": np.full(SMALL.shape, SIZE),
    "alone": np.where(np.arange(9) == LABELS[..., None], SIZE, -SIZE),
}


def rounded(logits, dtype):
    return logits.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype("float64")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits", LOGITS)
def test_loss_is_exact_and_its_gradient_finite(logits, smoothing, dtype):
    values = rounded(LOGITS[logits], dtype)
    variable = keras.Variable(values, dtype=dtype)
    loss = LabelSmoothedCrossEntropy(smoothing, reduction="none")
    value = array(loss(LABELS, ops.copy(variable)))
    expected = oracle.smoothed_cross_entropy(LABELS, values, smoothing)
    bound = 4 * EPS * max(1.0, smoothing * SIZE)
    np.testing.assert_allclose(value, expected, rtol=4 * EPS, atol=bound)

    summed = LabelSmoothedCrossEntropy(smoothing)
    _, (gradient,) = value_and_gradients(
        lambda: summed(LABELS, ops.copy(variable), ONES), [variable]
    )
    assert np.isfinite(gradient).all()
    expected = oracle.smoothed_cross_entropy_gradient(LABELS, values, smoothing)
    eps = EPS if dtype == "float32" else float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(gradient, expected, atol=2 * eps)


@pytest.mark.parametrize("logits", LOGITS)
def test_the_metric_is_exact_too(logits):
    metric = TokenLoss()
    metric.update_state(LABELS, LOGITS[logits].astype("float32"), ONES)
    expected = oracle.smoothed_cross_entropy(LABELS, rounded(LOGITS[logits], "float32"))
    np.testing.assert_allclose(float(metric.result()), expected.mean(), rtol=8 * EPS)
