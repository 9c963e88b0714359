"""Pairs of our variables and torch's tensors, and copying them either way.

A pair is `(variable, tensor)`: the tensor is a view of a torch parameter in the layout of our
variable, so that writing to it writes to the parameter. Either is None where there is no such bias.
"""

import numpy as np
from keras import ops


def linear_pairs(kernel, bias, linear):
    """Return the pairs of a linear map: torch keeps `[output, input]`, ours is transposed."""
    return [(kernel, linear.weight.detach().T), (bias, detached(linear.bias))]


def norm_pairs(norm, torch_norm):
    """Return the pairs of a layer norm."""
    return [(norm.gamma, detached(torch_norm.weight)), (norm.beta, detached(torch_norm.bias))]


def detached(parameter):
    """Return the tensor of a parameter, which shares its memory; None for None."""
    return None if parameter is None else parameter.detach()


def read(pairs):
    """Set our variables to torch's tensors; a bias that torch does not have is zero."""
    for variable, tensor in pairs:
        if variable is not None:
            zeros = tensor is None
            variable.assign(np.zeros(variable.shape) if zeros else tensor_values(tensor))


def write(pairs):
    """Set torch's tensors to our variables; a bias that ours does not have is zero."""
    for variable, tensor in pairs:
        if tensor is not None:
            write_values(tensor, 0.0 if variable is None else variable_values(variable))


def write_values(tensor, values):
    """Set a torch tensor to values of its shape, or a number."""
    import torch

    tensor.copy_(torch.as_tensor(values))


def tensor_values(tensor):
    """Return the values of a torch tensor in float64, which holds all narrower ones."""
    return tensor.detach().cpu().double().numpy()


def variable_values(variable):
    """Return the values of a Keras variable in float64."""
    return np.array(ops.convert_to_numpy(variable.value), dtype="float64")


def torch_dtype(layer):
    """Return torch's dtype of the weights of our layer."""
    import torch

    return getattr(torch, layer.variable_dtype)
