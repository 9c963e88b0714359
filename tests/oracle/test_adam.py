"""FusedAdam with the paper's schedule is Kingma and Ba's Adam over 50 steps."""

import keras
import numpy as np
import pytest

from keras_transformer.training import FusedAdam, TransformerSchedule
from tests.closeness import assert_close
from tests.oracle import adam as oracle
from tests.precision.gradients import array

STEPS, D_MODEL, WARMUP = 50, 8, 20
RNG = np.random.default_rng(0)
WEIGHTS = [RNG.normal(size=shape) for shape in ((3, 4), (4,), (6, 2))]
SIZES = [10.0, 1e-3, 1.0]
GRADIENTS = [
    size * RNG.normal(size=(STEPS, *weights.shape))
    for size, weights in zip(SIZES, WEIGHTS, strict=True)
]
GRADIENTS[2][:, 1] = 0.0  # Such as the rows of tokens that do not occur.
GRADIENTS[2][25:] = 0.0


def trained(epsilon):
    """Our weights after each step."""
    variables = [keras.Variable(weights, dtype="float32") for weights in WEIGHTS]
    schedule = TransformerSchedule(D_MODEL, WARMUP)
    optimizer = FusedAdam(schedule, beta_1=0.9, beta_2=0.98, epsilon=epsilon)
    history = []
    for step in range(STEPS):
        gradients = [keras.ops.cast(of_weights[step], "float32") for of_weights in GRADIENTS]
        optimizer.apply(gradients, variables)
        history.append([array(variable) for variable in variables])
    return history


def expected(epsilon, variant):
    rates = [oracle.learning_rate(step, D_MODEL, WARMUP) for step in range(1, STEPS + 1)]
    return [
        oracle.adam(weights, gradients, rates, 0.9, 0.98, epsilon, variant)
        for weights, gradients in zip(WEIGHTS, GRADIENTS, strict=True)
    ]


def largest_difference(ours, theirs):
    return max(
        np.abs(np.array(history) - other).max()
        for history, other in zip(zip(*ours, strict=True), theirs, strict=True)
    )


@pytest.mark.parametrize("variant", ["algorithm_1", "section_2"])
def test_with_the_papers_epsilon_it_is_both_forms_of_adam(variant):
    """50 steps of a rate of up to 0.08 move weights by about 2; float32 keeps 6 digits of that."""
    ours, theirs = trained(1e-9), expected(1e-9, variant)
    assert np.abs(theirs[0][-1] - WEIGHTS[0]).max() > 0.5
    assert_close(largest_difference(ours, theirs), 0.0, scale=WEIGHTS[0])


def test_a_large_epsilon_stands_where_section_2_has_it():
    ours = trained(1e-3)
    assert_close(largest_difference(ours, expected(1e-3, "section_2")), 0.0, scale=WEIGHTS[0])
    assert largest_difference(ours, expected(1e-3, "algorithm_1")) > 1e-2
