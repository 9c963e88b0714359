"""Base of layers that consist of layers, and whose frozen parts stay frozen after saving."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.layers.configured_layer import TracedLayer


class CompositeLayer(TracedLayer):
    """Base of layers whose parts are layers; a frozen part stays frozen in a saved model.

    Keras saves `trainable` of a layer but not of its parts: a frozen
    `keras.layers.MultiHeadAttention` trains again after it is reloaded.
    """

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        has_one_form = kwargs.get("cache") is None and not kwargs.get("return_attention_scores")
        are_tensors = all(isinstance(value, keras.KerasTensor) for value in args)
        if args and has_one_form and are_tensors and all(map(_keeps_shape, self._whole())):
            return keras.KerasTensor(args[0].shape, dtype=self.compute_dtype)
        return super().compute_output_spec(*args, **kwargs)

    def _whole(self):
        """Returns this layer and the layers in it that the user may have given."""
        return [self]

    def compute_output_shape(
        self, inputs_shape: tuple, encoder_outputs_shape: tuple | None = None
    ) -> tuple:
        return inputs_shape

    def get_build_config(self) -> dict | None:
        config = super().get_build_config()
        return None if config is None else {**config, "trainable_parts": trainable_parts(self)}

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(config)
        set_trainable_parts(self, config.get("trainable_parts", {}))


def trainable_parts(layer: keras.layers.Layer) -> dict[str, bool]:
    """Returns the parts of a layer whose `trainable` differs from the layer that contains them.

    The parts are the layers in public attributes of a built layer. The keys are their paths, such
    as `"blocks.0.feed_forward"`, and the values `trainable`; outer parts come first.
    """
    found, seen = {}, {id(layer)}

    def collect(layer, prefix):
        for name, part in _named_parts(layer):
            if id(part) in seen or not part.weights:
                continue
            seen.add(id(part))
            if part.trainable != layer.trainable:
                found[prefix + name] = part.trainable
            collect(part, f"{prefix}{name}.")

    collect(layer, "")
    return found


def set_trainable_parts(layer: keras.layers.Layer, parts: Mapping[str, bool]) -> None:
    """Sets `trainable` of parts of a layer, as `trainable_parts` returned them."""
    for path, trainable in parts.items():
        part = layer
        for name in path.split("."):
            part = part[int(name)] if name.isdigit() else getattr(part, name)
        part.trainable = trainable


def _keeps_shape(layer):
    # A user's `call` may do anything, and may build the layer.
    return layer.built and type(layer).call.__module__.startswith("keras_transformer.")


def _named_parts(layer):
    # On torch a layer is a module, which does not keep its parts in its attributes.
    modules = layer.named_children() if keras.backend.backend() == "torch" else ()
    for name, value in {**vars(layer), **dict(modules)}.items():
        items = {name: value}
        if isinstance(value, list):
            items = {f"{name}.{index}": item for index, item in enumerate(value)}
        for path, item in items.items():
            if isinstance(item, keras.layers.Layer) and not name.startswith("_"):
                yield path, item
