"""`CompositeLayer`: base of layers that consist of layers, which Keras can quantize and freeze."""

import collections
import functools
import inspect
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import keras

from keras_transformer import checks
from keras_transformer.layers import backend_operations
from keras_transformer.layers.int8_products import Dense, quick_quantization

_serialize = keras.saving.serialize_keras_object

# The checks of the arguments that several layers have.
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("num_heads", "key_dim", "value_dim"), checks.check_positive_integer),
    **dict.fromkeys(("intermediate_dim", "sliding_window"), checks.check_positive_integer),
    **dict.fromkeys(("vocab_size", "d_model"), checks.check_positive_integer),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), checks.check_rate),
    **dict.fromkeys(("use_bias", "flash_attention"), checks.check_boolean),
    **dict.fromkeys(("final_norm", "embedding_norm", "remat"), checks.check_boolean),
    "mask_zero": checks.check_boolean,
    "norm": functools.partial(checks.check_choice, allowed=("post", "pre")),
    "epsilon": checks.check_positive_number,
    "seed": checks.check_seed,
}


class CompositeLayer(keras.layers.Layer):
    """Base class of layers that consist of layers, and whose outputs have the first input's shape.

    Keras saves whether a layer is quantized and trainable, but not whether its parts are. Here the
    config says which parts are quantized, and the build config which are frozen.

    A subclass calls `check_arguments` in its constructor, and at the end of `build`
    `quantize_parts(self, self.quantized_parts)`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.quantized_parts: dict[str, Any] = {}  # Parts to quantize in `build`.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Not in `call`: Keras builds the layer before, and may not call it for symbolic tensors.
        if is_composite(self):
            self._check_inputs(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _check_inputs(self, *args: Any, **kwargs: Any) -> None:
        """Raises a `ValueError` if the arguments of a call do not fit together."""

    def compute_output_shape(self, inputs_shape: tuple, *other_shapes: tuple | None) -> tuple:
        return inputs_shape

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # With scores or a cache there are further outputs, which Keras infers by tracing `call`.
        is_traced = kwargs.get("cache") is not None or kwargs.get("return_attention_scores")
        are_tensors = all(isinstance(value, keras.KerasTensor) for value in args)
        if args and are_tensors and not is_traced and self._keeps_shape():
            return keras.KerasTensor(args[0].shape, dtype=self.compute_dtype)
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def _keeps_shape(self) -> bool:
        """Returns whether a call without scores and cache returns the shape of the first input."""
        return self.built and is_composite(self)

    def get_config(self) -> dict:
        parts = quantized_parts(self) if self.built else self.quantized_parts
        return {**super().get_config(), "quantized_parts": parts}

    @classmethod
    def from_config(cls, config: dict) -> Self:
        config = dict(config)
        parts = config.pop("quantized_parts", {})
        for name in ("attention", "position"):
            if name in config:
                config[name] = keras.saving.deserialize_keras_object(config[name])
        layer = super().from_config(config)
        layer.quantized_parts = parts
        return layer

    def get_build_config(self) -> dict | None:
        config = super().get_build_config()
        return None if config is None else {**config, "trainable_parts": trainable_parts(self)}

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(config)
        set_trainable_parts(self, config.get("trainable_parts", {}))


def unbuilt_config(layer: keras.layers.Layer | None) -> Any:
    """Returns a layer's config without its shapes, because the layer around it builds it."""
    config = keras.saving.serialize_keras_object(layer)
    if config is not None:
        # In the same dict: Keras marks it if another layer shares the object.
        config.pop("build_config", None)
    return config


def is_composite(layer: keras.layers.Layer) -> bool:
    """Returns whether `call` is known: a subclass of a class of this library may override it."""
    return type(layer).__module__.startswith("keras_transformer.")


@functools.cache
def _parameters(layer_class):
    parameters = list(inspect.signature(layer_class.__init__).parameters.values())[1:]
    return [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]


def check_arguments(layer: CompositeLayer, layer_class: type) -> None:
    """Checks the attributes of a layer that are arguments of `layer_class`.

    Arguments whose default is None may be None.
    """
    for parameter in _parameters(layer_class):
        name, value = parameter.name, getattr(layer, parameter.name)
        if name in _CHECKS and not (value is None and parameter.default is None):
            _CHECKS[name](name, value)


def derive_seed(seed: int | None, name: str) -> int | None:
    """Returns the seed of the part `name`, derived from the seed of the layer."""
    return None if seed is None else (seed + zlib.crc32(name.encode())) % 2**31


def derive_initializer(initializer: Callable, name: str) -> Callable:
    """Returns an initializer that draws different numbers for each part `name`.

    An initializer that is used twice, or copied with its seed, gives equal matrices.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer  # A function.
    config = initializer.get_config()
    if "seed" not in config:
        return initializer  # It draws nothing.
    seed = config["seed"]
    if isinstance(seed, int):
        return type(initializer).from_config({**config, "seed": derive_seed(seed, name)})
    # A seed generator draws new numbers with each use, and a copy would begin again.
    return initializer if seed is not None else initializer.clone()


def built_dense(layer, name, input_dim, units, **kwargs):
    """Returns a built `Dense`, a part of `layer`, which has the other arguments as attributes."""
    dense = Dense(
        units,
        use_bias=layer.use_bias,
        kernel_initializer=derive_initializer(layer.kernel_initializer, f"{name}_kernel"),
        bias_initializer=derive_initializer(layer.bias_initializer, f"{name}_bias"),
        kernel_regularizer=layer.kernel_regularizer,
        trainable=layer.trainable,
        dtype=layer.dtype_policy,
        name=name,
        **kwargs,
    )
    return build_part(dense, (None, input_dim))


def dense_config(layer: CompositeLayer) -> dict[str, Any]:
    """Returns the arguments of `built_dense` that a layer has, as `get_config` needs them."""
    return {
        "kernel_initializer": keras.initializers.serialize(layer.kernel_initializer),
        "bias_initializer": keras.initializers.serialize(layer.bias_initializer),
        "kernel_regularizer": keras.regularizers.serialize(layer.kernel_regularizer),
    }


def freeze_given(layer: keras.layers.Layer, *parts: keras.layers.Layer | None) -> None:
    """Freezes parts that a layer was given if its own argument `trainable` is False.

    Keras freezes the parts when `trainable` is set, not when it is an argument.
    """
    for part in parts:
        if part is not None and not layer.trainable:
            part.trainable = False


def build_part(part: Any, *shapes: tuple) -> Any:
    """Returns a part of a layer, built for inputs of these shapes."""
    with backend_operations.short_names():
        part.build(*shapes)
    return part


def quantized_parts(layer: keras.layers.Layer) -> dict[str, dict]:
    """Returns the mode and the configuration of each quantized part of a layer, by its path."""
    return {
        path: {"mode": part.quantization_mode, "config": _serialize(part.quantization_config)}
        for path, part, _ in parts_of(layer)
        if part.quantization_mode is not None
    }


def quantize_parts(layer: keras.layers.Layer, parts: Mapping[str, dict]) -> None:
    """Quantizes the parts that `quantized_parts` returned; set the weights afterwards."""
    if not parts:
        return
    with quick_quantization():
        for path, quantization in parts.items():
            config = keras.saving.deserialize_keras_object(quantization["config"])
            _part(layer, path).quantize(quantization["mode"], config=config)


def trainable_parts(layer: keras.layers.Layer) -> dict[str, bool]:
    """Returns `trainable` of the parts in which it differs from the layer around them, by path."""
    return {
        path: part.trainable
        for path, part, parent in parts_of(layer)
        if part.weights and part.trainable != parent.trainable
    }


def set_trainable_parts(layer: keras.layers.Layer, parts: Mapping[str, bool]) -> None:
    """Sets `trainable` of parts of a layer, as `trainable_parts` returned them."""
    for path, trainable in parts.items():
        _part(layer, path).trainable = trainable


def _part(layer, path):
    for name in path.split("."):
        layer = layer[int(name)] if name.isdigit() else getattr(layer, name)
    return layer


def parts_of(
    layer: keras.layers.Layer, private: bool = False
) -> Iterator[tuple[str, keras.layers.Layer, Any]]:
    """Yields path, layer and parent of each layer in public attributes, outer layers first.

    A path is `"blocks.0.feed_forward"`. With `private`, layers that only private attributes,
    tuples or dicts hold come too: Keras lists all of them in one private attribute.
    """
    seen = {id(layer)}

    def walk(parent, prefix):
        # On torch a layer is a module, which does not keep its parts in its attributes.
        modules = parent.named_children() if hasattr(parent, "named_children") else ()
        for name, value in {**vars(parent), **dict(modules)}.items():
            if name.startswith("_") and not private:
                continue
            items = {name: value}
            if isinstance(value, list):
                items = {f"{name}.{index}": item for index, item in enumerate(value)}
            for path, part in items.items():
                if isinstance(part, keras.layers.Layer) and id(part) not in seen:
                    seen.add(id(part))
                    yield prefix + path, part, parent
                    yield from walk(part, f"{prefix}{path}.")

    yield from walk(layer, "")


# Files of version 1.0 and before: layers held the weights of their parts themselves.


def load_version_1(store: Mapping, layers: Iterable[keras.layers.Layer], weights: Iterable) -> bool:
    """Loads the parts of a layer from the weights that an old file stores for the layer itself.

    Call it in `load_own_variables`, which Keras calls for a layer before it does for its parts. In
    a newer file the layer itself has only the weights that a subclass adds, and Keras loads the
    parts.

    Args:
        store: Values of the layer's own weights in the file, by number.
        layers: Parts of the layer.
        weights: Weights of the parts, in the order of the old file.

    Returns:
        Whether the file is old.
    """
    layers, weights = list(layers), list(weights)
    if not store.keys() or store["0"].shape != weights[0].shape:
        return False
    for layer in layers:
        if layer.quantization_mode is not None or layer.lora_enabled:
            rule = "Weights of version 1.0 are loaded before a layer is quantized or gets LoRA"
            raise ValueError(f"{rule}. Received: {layer.path!r}, which is changed already")
    for number, weight in enumerate(weights):
        weight.assign(store[str(number)])
    for layer in layers:
        layer.load_own_variables = _load_nothing_once(layer)
    return True


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
