"""`CompositeLayer`: base of layers that consist of layers, which Keras can quantize and freeze."""

import gc
from collections.abc import Iterator, Mapping
from typing import Any, Self

import keras

from keras_transformer.layers.seeds import derive_initializer


class CompositeLayer(keras.layers.Layer):
    """Base of layers whose outputs have the shape of their first input, and whose parts are layers.

    Keras saves whether a layer is quantized and trainable, but not whether its parts are. Here the
    config says which parts are quantized, and the build config which are frozen.

    A subclass calls `quantize_parts(self, self.quantized_parts)` at the end of `build`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.quantized_parts: dict[str, Any] = {}  # Parts to quantize in `build`.

    def compute_output_shape(self, inputs_shape: tuple, *other_shapes: tuple | None) -> tuple:
        return inputs_shape

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # With scores or a cache there are further outputs, which Keras finds by tracing `call`.
        is_traced = kwargs.get("cache") is not None or kwargs.get("return_attention_scores")
        are_tensors = all(isinstance(value, keras.KerasTensor) for value in args)
        if args and are_tensors and not is_traced and self._keeps_shape():
            return keras.KerasTensor(args[0].shape, dtype=self.compute_dtype)
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def _keeps_shape(self) -> bool:
        """Returns whether a call without scores and cache returns the shape of the first input."""
        return self.built and type(self).__base__ is CompositeLayer  # A subclass may do anything.

    def get_config(self) -> dict:
        parts = quantized_parts(self) if self.built else self.quantized_parts
        return {**super().get_config(), "quantized_parts": parts}

    @classmethod
    def from_config(cls, config: dict) -> Self:
        config = dict(config)
        parts = config.pop("quantized_parts", {})
        layer = super().from_config(config)
        layer.quantized_parts = parts
        return layer

    def get_build_config(self) -> dict | None:
        config = super().get_build_config()
        return None if config is None else {**config, "trainable_parts": trainable_parts(self)}

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(config)
        set_trainable_parts(self, config.get("trainable_parts", {}))


def built_dense(
    layer: CompositeLayer, name: str, input_dim: int, units: int, **kwargs: Any
) -> keras.layers.Dense:
    """Returns a linear map of a layer that has the arguments of `keras.layers.Dense`.

    Each map draws its own initial values.

    Args:
        layer: Layer with `use_bias`, `kernel_initializer`, `bias_initializer` and
            `kernel_regularizer`.
        name: Name of the map.
        input_dim: Width of the inputs.
        units: Width of the outputs.
        **kwargs: Other arguments of `keras.layers.Dense`.
    """
    dense = keras.layers.Dense(
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
    dense.build((None, input_dim))
    return dense


def quantized_parts(layer: keras.layers.Layer) -> dict[str, dict]:
    """Returns the mode and the configuration of each quantized part of a layer, by its path."""
    serialize = keras.saving.serialize_keras_object
    return {
        path: {"mode": part.quantization_mode, "config": serialize(part.quantization_config)}
        for path, part, _ in _parts(layer)
        if part.quantization_mode is not None
    }


def quantize_parts(layer: keras.layers.Layer, parts: Mapping[str, dict]) -> None:
    """Quantizes the parts of a built layer that `quantized_parts` returned; the weights follow."""
    if parts:
        # Keras collects garbage after each map, which takes 0.1 s unless all objects are frozen.
        gc.freeze()
    for path, quantization in parts.items():
        config = keras.saving.deserialize_keras_object(quantization["config"])
        _part(layer, path).quantize(quantization["mode"], config=config)
    if parts:
        gc.unfreeze()


def trainable_parts(layer: keras.layers.Layer) -> dict[str, bool]:
    """Returns the parts of a layer whose `trainable` differs from the layer that contains them.

    The keys are their paths, such as `"blocks.0.feed_forward"`, and the values `trainable`; outer
    parts come first.
    """
    return {
        path: part.trainable
        for path, part, parent in _parts(layer)
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


def _parts(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.layers.Layer, Any]]:
    """Yields the path, the layer and the parent of each layer in public attributes, outer first."""
    seen = {id(layer)}

    def walk(parent, prefix):
        # On torch a layer is a module, which does not keep its parts in its attributes.
        modules = parent.named_children() if keras.backend.backend() == "torch" else ()
        for name, value in {**vars(parent), **dict(modules)}.items():
            items = {name: value}
            if isinstance(value, list):
                items = {f"{name}.{index}": item for index, item in enumerate(value)}
            for path, part in items.items():
                is_part = isinstance(part, keras.layers.Layer) and not name.startswith("_")
                if is_part and id(part) not in seen:
                    seen.add(id(part))
                    yield prefix + path, part, parent
                    yield from walk(part, f"{prefix}{path}.")

    yield from walk(layer, "")
