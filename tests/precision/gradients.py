"""Gradients on whatever backend runs the tests, as NumPy arrays in float64."""

import keras
import numpy as np
from keras import ops


def has_float64():
    """Whether Keras computes all of a float64 layer in float64.

    On JAX and torch its type promotion, and with it its layer norm, gives float32.
    """
    return keras.backend.backend() == "tensorflow"


def array(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float64")))


def value_and_gradients(function, variables):
    """The scalar that `function()` returns and its gradient to each Keras variable.

    Args:
        function: computes a scalar from the variables, which it reads by itself.
        variables: list of built, trainable Keras variables.

    Returns:
        float, and a list of float64 arrays; zeros for a variable that the value does not need.
    """
    backend = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    value, gradients = backend(function, variables)
    return float(array(value)), [
        np.zeros(variable.shape) if gradient is None else array(gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
    ]


def _tensorflow(function, variables):
    import tensorflow as tf

    values = [variable.value for variable in variables]
    with tf.GradientTape() as tape:
        value = function()
    gradients = tape.gradient(value, values)
    # Lookups give slices, which are to be added where ids repeat.
    return value, [None if one is None else tf.convert_to_tensor(one) for one in gradients]


def _jax(function, variables):
    import jax

    def of_values(values):
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return function()

    return jax.value_and_grad(of_values)([variable.value for variable in variables])


def _torch(function, variables):
    import torch

    value = function()
    values = [variable.value for variable in variables]
    gradients = torch.autograd.grad(value, values, allow_unused=True)
    return value.detach(), gradients
