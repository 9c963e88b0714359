"""Outputs and gradients of two libraries, side by side."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.precision.gradients import array, has_float64, value_and_gradients

OUTPUT_TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
GRADIENT_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
# float64 tells most. Where Keras computes it in part in float32, the other is tested each time.
DTYPES = ["float32"]
if has_float64():
    DTYPES = ["float64", pytest.param("float32", marks=pytest.mark.slow)]


def keras_values(layer, call, inputs, cotangent):
    """Outputs of a Keras layer, and the gradients of `sum(outputs * cotangent)`.

    The gradients are those of the inputs, floating arrays, then of the weights.
    """
    inputs = [keras.Variable(one, dtype=one.dtype.name) for one in inputs]
    cotangent = ops.convert_to_tensor(cotangent)

    def outputs():
        return call(*(ops.convert_to_tensor(one) for one in inputs))

    _, gradients = value_and_gradients(
        lambda: ops.sum(ops.multiply(outputs(), cotangent)), [*inputs, *layer.weights]
    )
    return array(outputs()), gradients


def errors_against_torch(layer, module, calls, inputs, cotangent, export):
    """Errors of a Keras layer against a torch module; see `errors`. The layer loses its weights.

    `calls` are two functions that call them on tensors, ours first. `export` is linear: from a
    layer whose weights are gradients it makes a module whose parameters are these gradients.
    """
    import torch

    outputs, gradients = keras_values(layer, calls[0], inputs, cotangent)
    layer.set_weights(gradients[len(inputs) :])
    exported = dict(export(layer).named_parameters())
    tensors = [torch.tensor(one, requires_grad=True) for one in inputs]
    their_outputs = calls[1](*tensors)
    module.zero_grad()
    (their_outputs * torch.tensor(cotangent)).sum().backward()
    ours, theirs = gradients[: len(inputs)], [one.grad.numpy() for one in tensors]
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            ours.append(exported[name].detach().numpy())
            theirs.append(parameter.grad.numpy())
    return errors((outputs, ours), (their_outputs.detach().numpy(), theirs))


def randomize_torch(module, rng):
    """Give every parameter, biases and norms included, a value that matters."""
    import torch

    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            fan_in = parameter.shape[-1] if parameter.dim() == 2 else 4
            values = rng.normal(size=tuple(parameter.shape)) / np.sqrt(fan_in)
            is_scale = "norm" in name and name.endswith("weight")
            parameter.data.copy_(torch.tensor(values + is_scale))


def errors(ours, theirs):
    """Largest relative errors of the outputs and of the gradients of two pairs of them.

    Outputs are relative to the largest output. A gradient is relative to its own largest value, or
    a hundredth of the largest of all: that of a key's bias is zero but for rounding.
    """
    output_error = np.abs(ours[0] - theirs[0]).max() / np.abs(theirs[0]).max()
    scales = [np.abs(gradient).max() for gradient in theirs[1]]
    gradient_error = max(
        np.abs(our - their).max() / max(scale, max(scales) / 100)
        for our, their, scale in zip(ours[1], theirs[1], scales, strict=True)
    )
    return float(output_error), float(gradient_error)


def assert_small_errors(error, dtype):
    output_error, gradient_error = error
    assert output_error <= OUTPUT_TOLERANCE[dtype]
    assert gradient_error <= GRADIENT_TOLERANCE[dtype]


def assert_same_weights(one, other):
    assert len(one.weights) == len(other.weights)
    for a, b in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(array(a), array(b))
