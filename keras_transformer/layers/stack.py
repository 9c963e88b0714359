"""Base of the encoder and the decoder: position, blocks, dropout and final norm."""

import functools
from collections.abc import Sequence
from typing import Any, Self

import keras

from keras_transformer.layers.checks import check_argument
from keras_transformer.layers.composite_layer import CompositeLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.recomputation import recomputed
from keras_transformer.layers.sinusoidal_position_encoding import SinusoidalPositionEncoding

_deserialize = keras.saving.deserialize_keras_object


class Stack(CompositeLayer):
    """Base of `Encoder` and `Decoder`; `Encoder` describes the arguments."""

    def __init__(
        self,
        blocks: Sequence[keras.layers.Layer],
        position: str | keras.layers.Layer | None = "sinusoidal",
        dropout: float = 0.1,
        final_norm: bool | None = None,
        epsilon: float = 1e-6,
        seed: int | None = None,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        is_list = isinstance(blocks, (list, tuple)) and len(blocks) > 0
        are_layers = is_list and all(isinstance(block, keras.layers.Layer) for block in blocks)
        check_argument(are_layers, "blocks", "a list of at least one layer", blocks)
        self._keep(dropout=dropout, final_norm=final_norm, epsilon=epsilon, seed=seed, remat=remat)
        self.blocks = list(blocks)
        self.position = self._make_position(position)
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")
        if not self.trainable:
            # Keras freezes the parts when `trainable` is set, not when it is an argument.
            self._set_trainable([False] * len(self._parts()))

    def _parts(self):
        return [*self.blocks, *([] if self.position is None else [self.position])]

    def _whole(self):
        return [self, *self._parts()]

    def _set_trainable(self, flags):
        for part, trainable in zip(self._parts(), flags, strict=True):
            part.trainable = trainable

    def _make_position(self, position):
        if position == "sinusoidal":
            return SinusoidalPositionEncoding(dtype=self.dtype_policy, name="position")
        if position is None or isinstance(position, keras.layers.Layer):
            return position
        rule = "`position` must be 'sinusoidal', a layer that adds positions to its inputs, or None"
        raise ValueError(f"{rule}. Received: {position=}")

    def _build_ends(self, inputs_shape):
        """Builds the position, the dropout and the final norm."""
        self._build_once(self.position, inputs_shape)
        self.dropout_layer.build(inputs_shape)
        # Pre-norm blocks do not normalise their last sum; post-norm blocks do.
        needs_norm = getattr(self.blocks[-1], "norm", None) == "pre"
        self.norm_layer = None
        if needs_norm if self.final_norm is None else self.final_norm:
            options = {"trainable": self.trainable, "dtype": self.dtype_policy}
            self.norm_layer = LayerNormalization(self.epsilon, name="final_norm", **options)
            self.norm_layer.build(inputs_shape)

    def _build_once(self, layer, *shapes):
        # A layer that was built before, elsewhere or from a file, keeps its weights; one without
        # a `build` of its own is built by its first call, as everywhere in Keras.
        if layer is None or layer.built or type(layer).build is keras.layers.Layer.build:
            return
        layer.build(*shapes)

    def _apply(self, inputs, *others, positions, training, caches=None, **arguments):
        """Returns the outputs, and a list of the attention weights or caches of the blocks.

        `others` holds the encoder's outputs, if there are any.
        """
        if self.position is not None:
            inputs = self.position(inputs, positions=positions)
        # `stateless_call` sets no context from which the layers would take `training`.
        outputs, extras = self.dropout_layer(inputs, training=training), []
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            own = {} if cache is None else {"cache": cache}  # Not every block accepts one.
            is_plain = not own and "return_attention_scores" not in arguments
            if self.remat and is_plain:
                apply = recomputed(block, training)
            else:
                apply = functools.partial(block, training=training)
            outputs = apply(outputs, *others, **own, **arguments)
            if isinstance(outputs, tuple):
                outputs, extra = outputs
                extras.append(extra)
        return outputs if self.norm_layer is None else self.norm_layer(outputs), extras

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "blocks": _serialize_blocks(self.blocks),
            "position": _serialize_unbuilt(self.position),
        }

    @classmethod
    def from_config(cls, config: dict) -> Self:
        config = dict(config)
        config["blocks"] = _deserialize_blocks(config["blocks"])
        config["position"] = _deserialize(config["position"])
        parts = (*config["blocks"], config["position"])
        flags = [part.trainable for part in parts if part is not None]
        stack = cls(**config)
        stack._set_trainable(flags)  # A frozen stack may have trainable parts.
        return stack


def _serialize_unbuilt(layer):
    """Returns a layer's config without its shapes, because the stack builds the layer itself."""
    config = keras.saving.serialize_keras_object(layer)
    if config is not None:
        # In place: Keras marks this very dict if another layer shares the object.
        config.pop("build_config", None)
    return config


def _serialize_blocks(blocks):
    """Returns one entry per block.

    It is the block's config, or the index of its first occurrence if it occurred before.
    """
    configs, first = [], {}
    for index, block in enumerate(blocks):
        is_new = first.setdefault(id(block), index) == index
        configs.append(_serialize_unbuilt(block) if is_new else first[id(block)])
    return configs


def _deserialize_blocks(configs):
    blocks = []
    for config in configs:
        blocks.append(blocks[config] if isinstance(config, int) else _deserialize(config))
    return blocks
