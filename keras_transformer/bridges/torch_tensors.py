"""Pairs of our variables and tensors of torch modules, and copies in both directions.

A pair is `(variable, tensor)`. The tensor is a view of a torch parameter in the layout of our
variable: writing to it writes to the parameter. A bias that one side lacks is None.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from keras import ops

from keras_transformer.bridges import peer


def block_pairs(block, module, names: Mapping[str, str]) -> list[tuple]:
    """Returns the pairs of our block and a torch module.

    `names` maps attributes of the block to attributes of the module. `inner` and `outer` stand for
    the two maps of the feed-forward network.
    """
    pairs = []
    for ours, theirs in names.items():
        part = getattr(module, theirs)
        if ours in ("inner", "outer"):
            _check_linear(part)
            pairs += _linear_pairs(block.feed_forward, ours, part.weight, part.bias)
        elif ours.endswith("_norm"):
            pairs += norm_pairs(getattr(block, ours), part)
        else:
            pairs += attention_pairs(getattr(block, ours), part)
    return pairs


def attention_pairs(layer, module) -> list[tuple]:
    """Returns the pairs of our attention and one of `torch.nn` or transformers."""
    out = module.out_proj
    _check_linear(out)
    pairs = _linear_pairs(layer, "output", out.weight, out.bias)
    if not hasattr(module, "in_proj_weight"):
        maps = [module.q_proj, module.k_proj, module.v_proj]
        for linear in maps:
            _check_linear(linear)
        weights, biases = [one.weight for one in maps], [one.bias for one in maps]
    else:
        weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        if module.in_proj_weight is not None:  # Without kdim and vdim.
            weights = module.in_proj_weight.detach().chunk(3)
        bias = module.in_proj_bias
        biases = (None, None, None) if bias is None else bias.detach().chunk(3)
    for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        pairs += _linear_pairs(layer, name, weight, bias)
    return pairs


def norm_pairs(norm, torch_norm) -> list[tuple]:
    """Returns the pairs of a layer norm."""
    return [(norm.gamma, _detached(torch_norm.weight)), (norm.beta, _detached(torch_norm.bias))]


def _check_linear(module):
    """Raises a `ValueError` for a map that has more than its weight and bias, such as LoRA's."""
    import torch

    # A subclass may compute its weight, as for weight normalization.
    is_linear = isinstance(module, torch.nn.Linear)
    peer.check_supported(is_linear, "A linear map must be a torch.nn.Linear", repr(module))


def _linear_pairs(layer, name, torch_weight, torch_bias):
    """Returns the pairs of a linear map; torch's weights are `[output, input]`."""
    kernel, bias = getattr(layer, f"{name}_dense").kernel, getattr(layer, f"{name}_dense").bias
    return [(kernel, torch_weight.detach().T), (bias, _detached(torch_bias))]


def _detached(parameter):
    return None if parameter is None else parameter.detach()


def read(pairs: Iterable[tuple], arrange: Callable = lambda variable, values: values) -> None:
    """Sets our variables to torch's tensors, changed by `arrange`; a missing bias is zero."""
    for variable, tensor in pairs:
        if variable is not None:
            is_missing = tensor is None
            values = np.zeros(variable.shape) if is_missing else tensor_values(tensor)
            variable.assign(arrange(variable, values))


def write(pairs: Iterable[tuple], arrange: Callable = lambda variable, values: values) -> None:
    """Sets torch's tensors to our variables, changed by `arrange`; a missing bias is zero."""
    import torch

    for variable, tensor in pairs:
        if tensor is not None:
            values = 0.0
            if variable is not None:
                values = np.array(ops.convert_to_numpy(variable.value), dtype="float64")
                values = arrange(variable, values)
            tensor.copy_(torch.as_tensor(values))


def tensor_values(tensor) -> np.ndarray:
    """Returns the values of a torch tensor in float64, which is exact for all narrower types."""
    return tensor.detach().cpu().double().numpy()


def torch_dtype(layer):
    """Returns torch's dtype of the weights of our layer."""
    import torch

    return getattr(torch, layer.variable_dtype)


def keras_dtype(tensor) -> str:
    """Returns the name of a torch tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")
