"""Checks that the bridges share, and the import of the other library."""

import importlib
from collections.abc import Collection, Iterable
from types import ModuleType
from typing import Any

import keras

from keras_transformer.errors import UserError
from keras_transformer.layers import ScaledDotProductAttention


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
    """Raises a `ValueError` with `rule`, a sentence without a full stop, unless `is_supported`.

    The message also lists `received`, which are descriptions, and `values`, which are settings.
    """
    if not is_supported:
        parts = [*received, *(f"{name}={value!r}" for name, value in values.items())]
        raise ValueError(f"{rule}. Received: {', '.join(parts)}")


def check_type(name: str, value: Any, supported: Iterable[type]) -> None:
    """Raises `ValueError` unless `value` is of a supported type; subclasses are not supported."""
    allowed = ", ".join(sorted(one.__name__ for one in supported))
    rule, received = f"`{name}` must be one of {allowed}", f"{name} of type {type(value).__name__}"
    check_supported(type(value) in supported, rule, received)


def check_built(name: str, layer: keras.layers.Layer, supported: Iterable[type]) -> None:
    """Raises `ValueError` unless `layer` is of a supported type and has its weights."""
    check_type(name, layer, supported)
    check_supported(
        layer.built,
        "Only a built layer has weights to copy: call or build it first",
        f"{type(layer).__name__} {layer.name!r}, not built",
    )


def check_function(attention: keras.layers.Layer, library: str) -> None:
    """Raises `ValueError` unless an attention is scaled dot-product attention without positions."""
    function = attention.attention
    is_scaled = type(function) is ScaledDotProductAttention and function.scale is None
    rule = f"{library} has only scaled dot-product attention"
    check_supported(is_scaled, rule, f"attention of type {type(function).__name__}")
    rule = f"{library} has no positions inside attention"
    check_supported(attention.position is None, rule, position=attention.position)


def check_attention(attention: keras.layers.Layer, head_dim: float, library: str) -> None:
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
    is_one = all(value == values[0] for value in values)
    check_supported(is_one, f"`{name}` must be the same everywhere", **{name: values})
    return values[0]


def activation_name(activation: Any, supported: Collection[str]) -> str:
    """Returns the name of a Keras activation, or raises `UserError` if it is not supported."""
    activation = keras.activations.get(activation)
    for name in supported:
        if activation is keras.activations.get(name):
            return name
    rule = f"`activation` must be one of {', '.join(map(repr, supported))}"
    raise UserError(f"{rule}. Received: activation={keras.activations.serialize(activation)!r}")
