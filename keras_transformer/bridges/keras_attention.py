"""`keras.layers.MultiHeadAttention`, to and from ours.

The kernels of Keras have an axis for the heads; a copy is a reshape, as for KerasHub.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.bridges.peer import check_built, check_function, check_supported, check_type
from keras_transformer.layers import MultiHeadAttention

_MAPS = {"query": "query", "key": "key", "value": "value", "output": "attention_output"}
_SETTINGS = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "sliding_window", "seed")
_SETTINGS += ("kernel_initializer", "bias_initializer", "kernel_regularizer")
# Settings of Keras' layer that ours does not have, with the values at which they do nothing.
_UNSUPPORTED = {
    **dict.fromkeys(("output_shape", "bias_regularizer", "activity_regularizer"), (None,)),
    **dict.fromkeys(("kernel_constraint", "bias_constraint"), (None,)),
    "attention_axes": (None, (1,), [1]),
    "use_gate": (False,),
}


def from_keras(layer: keras.layers.MultiHeadAttention, dtype: Any = None) -> MultiHeadAttention:
    """Returns our attention with the weights of Keras' layer: the two compute the same.

    Differs from Keras: a query that may attend to nothing gets zeros here and an average there.

    Args:
        layer: `keras.layers.MultiHeadAttention`, built, of exactly this class.
        dtype: Dtype policy of the copy; None for the layer's.

    Returns:
        A built `MultiHeadAttention`.

    Raises:
        ValueError: If the layer is another one, is not built, or has a setting that ours does
            not have, such as `use_gate`.

    Example:

    >>> layer = keras.layers.MultiHeadAttention(num_heads=8, key_dim=64, sliding_window=16)
    >>> layer.build((None, None, 512), (None, None, 512))
    >>> keras_transformer.bridges.from_keras(layer).sliding_window
    16
    """
    check_type("layer", layer, [keras.layers.MultiHeadAttention])
    check_built(layer)
    config = layer.get_config()
    for name, allowed in _UNSUPPORTED.items():
        rule = f"`{name}` must be {allowed[0]!r}: our layer has none"
        check_supported(config.get(name) in allowed, rule, **{name: config.get(name)})
    settings = {name: config[name] for name in _SETTINGS}
    ours = MultiHeadAttention(**settings, dtype=dtype or layer.dtype_policy)
    weights = {_short_path(weight): weight for weight in layer.weights}
    widths = {name: weights[f"{name}/kernel"].shape[0] for name in ("query", "value", "key")}
    ours.build(*((None, None, width) for width in widths.values()))
    for path, variable in _variables(ours).items():
        variable.assign(ops.reshape(weights[path], variable.shape))
    return ours


def to_keras(layer: MultiHeadAttention) -> keras.layers.MultiHeadAttention:
    """Returns Keras' attention with the weights of ours: the two compute the same.

    Args:
        layer: A built `MultiHeadAttention` with the default score function and no `position`.

    Returns:
        A built `keras.layers.MultiHeadAttention`.

    Raises:
        ValueError: If the layer is another one, is not built, or computes what Keras' does not.

    Example:

    >>> layer = keras_transformer.layers.MultiHeadAttention(num_heads=8, key_dim=64)
    >>> layer.build((None, None, 512), (None, None, 512))
    >>> keras_transformer.bridges.to_keras(layer).count_params()
    1048576
    """
    check_type("layer", layer, [MultiHeadAttention])
    check_built(layer)
    check_function(layer, "Keras")
    settings = {name: getattr(layer, name) for name in _SETTINGS}
    theirs = keras.layers.MultiHeadAttention(**settings, dtype=layer.dtype_policy)
    kernels = layer.query_kernel, layer.value_kernel, layer.key_kernel
    theirs.build(*((None, None, kernel.shape[0]) for kernel in kernels))
    variables = _variables(layer)
    for weight in theirs.weights:
        variable = variables[_short_path(weight)]
        weight.assign(np.reshape(ops.convert_to_numpy(variable), weight.shape))
    return theirs


def _short_path(weight):
    return "/".join(weight.path.split("/")[-2:])


def _variables(layer):
    """Returns the variables of our layer by the end of the path that Keras gives them."""
    pairs = {
        f"{theirs}/{kind}": getattr(layer, f"{ours}_{kind}")
        for ours, theirs in _MAPS.items()
        for kind in ("kernel", "bias")
    }
    return {path: variable for path, variable in pairs.items() if variable is not None}
