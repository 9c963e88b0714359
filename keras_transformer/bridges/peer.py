"""What the bridges share: importing the other library, and the checks before a copy."""

import importlib

import keras

from keras_transformer.errors import UserError


def import_peer(name, extra):
    """Return the module `name`, or raise an `ImportError` that says how to install it.

    Args:
        name: Name of the other library's module.
        extra: The pip extra of this package that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"This bridge needs {name}: pip install '.[{extra}]' "
            "in the folder of keras_transformer's source"
        ) from error


def check_supported(is_supported, rule, received):
    """Raise `ValueError` unless `is_supported`.

    Args:
        is_supported: Whether the setting can be copied.
        rule: What can be, as a sentence without its full stop.
        received: What was received, such as `"key_dim=3"`.
    """
    if not is_supported:
        raise ValueError(f"{rule}. Received: {received}")


def check_type(name, value, supported):
    """Raise `ValueError` unless the type of `value` is one of `supported`.

    A subclass may compute something else, and is refused.
    """
    if type(value) not in supported:
        allowed = ", ".join(sorted(one.__name__ for one in supported))
        raise ValueError(
            f"`{name}` must be one of {allowed}. Received: {name} of type {type(value).__name__}"
        )


def check_built(layer):
    """Raise `ValueError` unless `layer` has its weights."""
    if not layer.built:
        raise ValueError(
            "Only a built layer has weights to copy: call or build it first. "
            f"Received: {type(layer).__name__} {layer.name!r}, not built"
        )


def single(name, values):
    """Return the value that all `values` are, or raise `ValueError` where they differ."""
    values = list(values)
    if any(value != values[0] for value in values):
        raise ValueError(f"`{name}` must be the same everywhere. Received: {name}={values!r}")
    return values[0]


def activation_name(activation, supported):
    """Return the name of a Keras activation among `supported`, or raise `ValueError`.

    Args:
        activation: A Keras activation: its name or its function.
        supported: Names of Keras activations that the other library has.
    """
    activation = keras.activations.get(activation)
    for name in supported:
        if activation is keras.activations.get(name):
            return name
    raise UserError(
        f"`activation` must be one of {', '.join(map(repr, supported))}. "
        f"Received: activation={keras.activations.serialize(activation)!r}"
    )
