"""Names and copies of weights, checks and imports of libraries, for all bridges."""

import importlib
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    MultiHeadAttention,
    ScaledDotProductAttention,
)

# The sub-layers of our layers that have weights, and their names in each library.
_LIBRARIES = ("Keras", "torch", "Marian")
_FEED_FORWARD = (
    ("feed_forward.inner_dense", "feedforward_intermediate_dense", "linear1", "fc1"),
    ("feed_forward.outer_dense", "feedforward_output_dense", "linear2", "fc2"),
)
_NAMES: dict[type, tuple] = {
    MultiHeadAttention: (
        ("query_dense", "query", "q_proj", "q_proj"),
        ("key_dense", "key", "k_proj", "k_proj"),
        ("value_dense", "value", "v_proj", "v_proj"),
        ("output_dense", "attention_output", "out_proj", "out_proj"),
    ),
    EncoderBlock: (
        ("attention", "self_attention_layer", "self_attn", "self_attn"),
        ("attention_norm", "self_attention_layer_norm", "norm1", "self_attn_layer_norm"),
        *_FEED_FORWARD,
        ("feed_forward_norm", "feedforward_layer_norm", "norm2", "final_layer_norm"),
    ),
    DecoderBlock: (
        ("self_attention", "self_attention", "self_attn", "self_attn"),
        ("self_attention_norm", "self_attention_layer_norm", "norm1", "self_attn_layer_norm"),
        ("cross_attention", "cross_attention", "multihead_attn", "encoder_attn"),
        ("cross_attention_norm", "cross_attention_layer_norm", "norm2", "encoder_attn_layer_norm"),
        *_FEED_FORWARD,
        ("feed_forward_norm", "feedforward_layer_norm", "norm3", "final_layer_norm"),
    ),
    Encoder: (("norm_layer", None, "norm", None),),
    Decoder: (("norm_layer", None, "norm", None),),
}


def sublayer_names(layer_class: type, library: str) -> dict[str, str]:
    """Returns the names of our layer's sub-layers in another library, by our names."""
    column = 1 + _LIBRARIES.index(library)
    return {row[0]: row[column] for row in _NAMES[layer_class]}


def attentions(layer: Any, names: Iterable[str]) -> list:
    """Returns the sub-layers with these names that are attentions."""
    return [getattr(layer, name) for name in names if name.endswith(("attention", "_attn"))]


def variables(layer: keras.layers.Layer, library: str) -> dict[str, Any]:
    """Returns the variables of our layer by their paths in another library.

    A bias that our layer lacks is None; cross-attention that it lacks is left out.
    """
    by_path: dict[str, Any] = {}
    for ours, theirs in sublayer_names(type(layer), library).items():
        if ours.startswith("cross_attention") and layer.cross_attention is None:
            continue
        inner = operator.attrgetter(ours)(layer)
        if isinstance(inner, MultiHeadAttention):
            inner_variables = variables(inner, library)
        else:
            kinds = ("gamma", "beta") if hasattr(inner, "gamma") else ("kernel", "bias")
            inner_variables = {kind: getattr(inner, kind) for kind in kinds}
        by_path |= {f"{theirs}/{path}": variable for path, variable in inner_variables.items()}
    return by_path


def _unchanged(variable, values):
    return values


def read(variables: Mapping, weights: Mapping, arrange: Callable = _unchanged) -> None:
    """Sets our variables to the weights with the same paths; a missing bias is zero.

    Weights are variables of Keras or tensors of torch. `arrange(variable, values)` reorders values.
    """
    for path, variable in variables.items():
        if variable is not None:
            values = array(weights[path]) if path in weights else np.zeros(variable.shape)
            variable.assign(arrange(variable, values.reshape(variable.shape)))


def write(variables: Mapping, weights: Mapping, arrange: Callable = _unchanged) -> None:
    """Sets the weights to our variables with the same paths; a bias that we lack is zero."""
    for path, weight in weights.items():
        values = np.zeros(weight.shape)
        if (variable := variables[path]) is not None:
            values = arrange(variable, array(variable)).reshape(weight.shape)
        if isinstance(weight, keras.Variable):
            weight.assign(values)
        elif isinstance(weight, np.ndarray):
            weight[...] = values
        else:
            weight.copy_(weight.new_tensor(values))


def array(weight: Any) -> np.ndarray:
    """Returns the values of a weight in at least float32, which is exact for narrower types.

    The array may share the memory of the weight.
    """
    if hasattr(weight, "detach"):  # It is a tensor of torch.
        tensor = weight.detach().cpu()
        return (tensor.float() if tensor.itemsize < 4 else tensor).numpy()
    values = np.asarray(ops.convert_to_numpy(weight))
    return values.astype(np.promote_types(values.dtype, "float32"), copy=False)


def import_peer(name: str, extra: str) -> ModuleType:
    """Returns the module `name`, or raises an `ImportError` that names the pip extra for it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"This bridge needs {name}: pip install '.[{extra}]' "
            "in the folder of keras_transformer's source"
        ) from error


def check_supported(is_supported: bool, rule: str, *received: str, **values: Any) -> None:
    """Raises a `ValueError` unless `is_supported`: `rule`, then descriptions and settings."""
    if not is_supported:
        parts = [*received, *(f"{name}={value!r}" for name, value in values.items())]
        raise UserError(f"{rule}. Received: {', '.join(parts)}")


def check_type(name: str, value: Any, supported: Iterable[type]) -> None:
    """Raises `ValueError` unless `value` is of a supported type; subclasses are not supported."""
    allowed = ", ".join(sorted(kind.__name__ for kind in supported))
    rule, received = f"`{name}` must be one of {allowed}", f"{name} of type {type(value).__name__}"
    check_supported(type(value) in supported, rule, received)


def check_built(name: str, layer: keras.layers.Layer, supported: Iterable[type]) -> None:
    """Raises `ValueError` unless `layer` is of a supported type and has its weights."""
    check_type(name, layer, supported)
    rule = "Only a built layer has weights to copy: call or build it first"
    check_supported(layer.built, rule, f"{type(layer).__name__} {layer.name!r}, not built")


def check_function(attention: MultiHeadAttention, library: str) -> None:
    """Raises `ValueError` unless an attention is scaled dot-product attention without positions."""
    function = attention.attention
    is_scaled = type(function) is ScaledDotProductAttention and function.scale is None
    rule = f"{library} has only scaled dot-product attention"
    check_supported(is_scaled, rule, f"attention of type {type(function).__name__}")
    rule = f"{library} has no positions inside attention"
    check_supported(attention.position is None, rule, position=attention.position)


def check_attention(attention: MultiHeadAttention, head_dim: float, library: str) -> None:
    """Raises a `ValueError` unless the other library can compute this attention."""
    check_function(attention, library)
    rule = f"{library} has attention to all keys only"
    check_supported(attention.sliding_window is None, rule, sliding_window=attention.sliding_window)
    check_supported(
        attention.key_dim == attention.value_dim == head_dim,
        f"Keys and values must have the size width / num_heads, as {library}'s have",
        f"key_dim={attention.key_dim}, value_dim={attention.value_dim}, "
        f"num_heads={attention.num_heads}, width {attention.query_dense.kernel.shape[0]}",
    )


def single(name: str, values: Iterable) -> Any:
    """Returns the value that all `values` have, or raises `ValueError` if they differ."""
    values = list(values)
    is_same = all(value == values[0] for value in values)
    check_supported(is_same, f"`{name}` must be the same everywhere", **{name: values})
    return values[0]


def activation_name(activation: Any, supported: Collection[str]) -> str:
    """Returns the name of a Keras activation, or raises `UserError` if it is not supported."""
    activation = keras.activations.get(activation)
    for name in supported:
        if activation is keras.activations.get(name):
            return name
    rule = f"`activation` must be one of {', '.join(map(repr, supported))}"
    raise UserError(f"{rule}. Received: activation={keras.activations.serialize(activation)!r}")
