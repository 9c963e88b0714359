"""Muon: kernels move along singular vectors, all other weights as with Adam."""

import keras
import numpy as np
import pytest

from keras_transformer.training import Muon
from keras_transformer.training.muon import orthogonalized
from tests.closeness import assert_all_close, assert_close


@pytest.mark.parametrize("shape", [(6, 6), (3, 7), (7, 3)])
def test_orthogonalized_keeps_singular_vectors_and_equalizes_singular_values(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype("float32")
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    found = keras.ops.convert_to_numpy(orthogonalized(keras.ops.convert_to_tensor(matrix)))
    found_values = left.T @ found @ right.T
    assert_close(found_values, np.diag(np.diag(found_values)), sum_length=64, scale=4.0)
    assert values.min() > np.linalg.norm(matrix) / 200
    assert 0.18 < np.diag(found_values).min() and np.diag(found_values).max() < 1.87
    assert not keras.ops.convert_to_numpy(orthogonalized(keras.ops.zeros((2, 3)))).any()


def test_a_step_of_muon():
    """Sums of gradients move a kernel by singular vectors; a bias moves as with Adam."""
    generator = np.random.default_rng(0)
    weights = {"kernel": (4, 9), "embeddings": (4, 9), "bias": (9,)}
    start = {name: generator.normal(size=shape) for name, shape in weights.items()}
    steps = [[generator.normal(size=shape) for shape in weights.values()] for _ in range(2)]

    def trained(optimizer):
        variables = [keras.Variable(value, name=name) for name, value in start.items()]
        for gradients in steps:
            optimizer.apply(list(map(keras.ops.convert_to_tensor, gradients)), variables)
        return [keras.ops.convert_to_numpy(variable) for variable in variables]

    kernel, *others = trained(Muon(0.1, momentum=0.5))
    _, *expected = trained(keras.optimizers.Adam(0.1))
    assert_all_close(others, expected)

    sums, position = 0.0, start["kernel"]
    for gradient, *_ in steps:
        sums = 0.5 * sums + gradient
        direction = orthogonalized(keras.ops.convert_to_tensor(gradient + 0.5 * sums))
        position = position - 0.1 * 0.2 * 9**0.5 * keras.ops.convert_to_numpy(direction)
    assert_close(kernel, position, sum_length=64, scale=1.0)


def test_wrong_arguments_say_what_was_received():
    with pytest.raises(ValueError, match="Received: momentum=1.0"):
        Muon(0.1, momentum=1.0)
    with pytest.raises(ValueError, match="Received: clip_norm=0.0"):
        Muon(0.1, clip_norm=0.0)
