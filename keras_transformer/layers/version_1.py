"""Files of version 1.0 and before, whose layers held the weights of their parts themselves."""

import collections
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras


def load_version_1(store: Mapping, layers: Iterable[keras.layers.Layer], weights: Iterable) -> None:
    """Loads the parts of a layer from the weights that an old file stores for the layer itself.

    Call it in `load_own_variables`, which Keras calls for a layer before it does for its parts. In
    a newer file the layer itself has no weights, and Keras loads the parts.

    Args:
        store: Values of the layer's own weights in the file, by number.
        layers: Parts of the layer.
        weights: Weights of the parts, in the order of the old file.
    """
    if not store.keys():
        return
    layers = list(layers)
    for layer in layers:
        if layer.quantization_mode is not None or layer.lora_enabled:
            rule = "Weights of version 1.0 are loaded before a layer is quantized or gets LoRA"
            raise ValueError(f"{rule}. Received: {layer.path!r}, which is changed already")
    for number, weight in enumerate(weights):
        weight.assign(store[str(number)])
    for layer in layers:
        layer.load_own_variables = _load_nothing_once(layer)


def _load_nothing_once(layer):
    def load(store: Any) -> None:
        del layer.load_own_variables  # The method of the class is next.

    return load


def current_names(names: Iterable[str]) -> dict[str, str]:
    """Returns today's name of each array of a `.weights.h5` file, old or new, by its name there."""
    names = list(names)
    if any("_dense/" in name for name in names):
        return dict(zip(names, names, strict=True))
    sizes = collections.Counter(name.partition("/vars/")[0] for name in names)
    return {name: _current_name(name, sizes) for name in names}


def _current_name(name, sizes):
    layer, _, number = name.partition("/vars/")
    size, kind = sizes[layer], re.sub(r"_\d+$", "", layer)
    if kind.endswith("attention"):
        per_map = size // 4  # A kernel, or a kernel and a bias.
        part = ("query", "key", "value", "output")[int(number) // per_map]
        return f"{layer}/{part}_dense/vars/{int(number) % per_map}"
    if kind.endswith("feed_forward"):
        return f"{layer}/{('inner', 'outer')[int(number) % 2]}_dense/vars/{int(number) // 2}"
    return f"{layer}/embedding/vars/{number}" if kind.endswith("embedding") else name
