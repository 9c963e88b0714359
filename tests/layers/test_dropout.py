"""Dropout keeps the expectation, drops only while training, and follows its seed."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Dropout
from tests.layers.oracle_parameters import array
from tests.layers.widest_float import FLOAT64


@pytest.mark.parametrize("dtype", [FLOAT64, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_share_of_zeros_and_scale(rate, dtype):
    outputs = array(
        Dropout(rate, seed=1, dtype=dtype)(np.ones((101, 999), dtype="float32"), training=True)
    )
    assert abs((outputs == 0).mean() - rate) < 0.01
    np.testing.assert_allclose(outputs[outputs != 0], 1 / (1 - rate), rtol=5e-3)


def test_expectation_is_exact():
    outputs = array(Dropout(0.3, seed=1)(np.ones((2000, 1000), "float32"), training=True))
    assert abs(outputs.mean() - 1) < 5 * np.sqrt(0.3 / 0.7 / 2e6)


@pytest.mark.parametrize("rate", [0.0, 1e-7, 0.9999999])
def test_extreme_rates(rate):
    outputs = array(Dropout(rate, seed=1)(np.ones((10, 10), "float32"), training=True))
    assert np.isfinite(outputs).all()
    # Within the rounding of the scale, 1 / (1 - 1e-7).
    assert (abs(outputs - 1) < 1e-6).all() if rate < 0.5 else (outputs == 0).all()


def test_does_nothing_outside_training():
    inputs = np.ones((3, 3), "float32")
    assert (array(Dropout(0.5)(inputs)) == 1).all()
    assert (array(Dropout(0.5)(inputs, training=False)) == 1).all()


def test_calls_draw_new_masks_and_a_seed_repeats_them():
    def masks(seed):
        layer = Dropout(0.5, seed=seed)
        return [array(layer(np.ones((8, 8), "float32"), training=True)) for _ in range(2)]

    first, second = masks(3)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(masks(3), [first, second])
    assert not np.array_equal(masks(4)[0], first)
    keras.utils.set_random_seed(9)
    unseeded = masks(None)
    keras.utils.set_random_seed(9)
    np.testing.assert_array_equal(masks(None), unseeded)


def test_neighbors_are_dropped_independently():
    """One random word serves two inputs: the halves must not be correlated."""
    kept = array(Dropout(0.5, seed=1)(np.ones((1000, 1000), "float32"), training=True)) != 0
    for shift in (1, 2, 3):
        assert abs(np.mean(kept[:, shift:] == kept[:, :-shift]) - 0.5) < 0.003


@pytest.mark.tensorflow_only("its own strategies")
def test_a_layer_is_called_in_the_scope_of_a_strategy_too():
    """Where models are built, and where there is no replica whose mask it could be."""
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        outputs = Dropout(0.5, seed=1)(np.ones((101, 999), "float32"), training=True)
    assert abs((array(outputs) == 0).mean() - 0.5) < 0.01
