"""Equation (2) as two convolutions; its dropout."""

import keras
import numpy as np

from keras_transformer.layers import FeedForward
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize

INPUTS = np.random.default_rng(2).normal(size=(2, 3, 8)).astype("float32")


def test_equals_two_convolutions_of_kernel_size_1():
    """Section 3.3: "Another way of describing this is as two convolutions with kernel size 1"."""
    layer = FeedForward(16)
    layer(INPUTS)
    randomize(layer)
    inner = keras.layers.Conv1D(16, kernel_size=1, activation="relu")
    outer = keras.layers.Conv1D(8, kernel_size=1)
    outer(inner(INPUTS))
    inner.set_weights([array(layer.inner_dense.kernel)[None], array(layer.inner_dense.bias)])
    outer.set_weights([array(layer.outer_dense.kernel)[None], array(layer.outer_dense.bias)])
    want = array(outer(inner(INPUTS)))
    assert_close(array(layer(INPUTS)), want)


def test_dropout_falls_behind_the_activation():
    layer = FeedForward(
        4000, activation=None, dropout=0.5, use_bias=False, seed=1, kernel_initializer="ones"
    )
    outputs = array(layer(np.ones((1, 1, 1), "float32"), training=True))
    kept = outputs / 2  # Each of the 4,000 is 0 or 2.
    assert kept == np.round(kept) and 1800 < kept < 2200


class Sevens(keras.initializers.Initializer):
    """An initializer of a user, which Keras does not ask for a config before it is saved."""

    def __init__(self, value):
        self.value = value

    def __call__(self, shape, dtype=None, **kwargs):
        return keras.ops.full(shape, self.value, dtype=dtype)


def test_an_initializer_without_a_config_is_used_as_it_is():
    layer = FeedForward(4, kernel_initializer=Sevens(7.0))
    layer.build((None, None, 8))
    assert set(array(layer.inner_dense.kernel).flat) == {7.0}
