"""What `Encoder` and `Decoder` have in common: arguments, positions, final norm, and saving."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.layers.checks import (
    check_argument,
    check_boolean,
    check_positive_number,
    check_rate,
)
from keras_transformer.layers.composite_layer import CompositeLayer
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.learned_position_embedding import LearnedPositionEmbedding
from keras_transformer.layers.sinusoidal_position_encoding import SinusoidalPositionEncoding


def checked_blocks(blocks: Sequence[keras.layers.Layer]) -> list[keras.layers.Layer]:
    """Returns the blocks of a stack as a list, or raises a `ValueError`."""
    is_list = isinstance(blocks, (list, tuple)) and len(blocks) > 0
    are_layers = is_list and all(isinstance(block, keras.layers.Layer) for block in blocks)
    check_argument(are_layers, "blocks", "a list of at least one layer", blocks)
    return list(blocks)


def make_position(
    position: str | keras.layers.Layer | None, dtype: keras.DTypePolicy
) -> keras.layers.Layer | None:
    """Returns the position layer of a stack, or raises a `ValueError`."""
    if position == "sinusoidal":
        return SinusoidalPositionEncoding(dtype=dtype, name="position")
    if position is None or isinstance(position, keras.layers.Layer):
        return position
    rule = "`position` must be 'sinusoidal', a layer that adds positions to its inputs, or None"
    raise ValueError(f"{rule}. Received: {position=}")


def check_stack(stack: CompositeLayer) -> None:
    """Checks the other arguments of a stack, and freezes the parts of a frozen one."""
    check_rate("dropout", stack.dropout)
    if stack.final_norm is not None:
        check_boolean("final_norm", stack.final_norm)
    check_positive_number("epsilon", stack.epsilon)
    check_boolean("remat", stack.remat)
    if not stack.trainable:
        # Keras freezes the parts when `trainable` is set, not when it is an argument.
        for part in _given_layers(stack):
            part.trainable = False


def _given_layers(stack):
    return [*stack.blocks, *([] if stack.position is None else [stack.position])]


def build_once(layer: keras.layers.Layer | None, *shapes: tuple) -> None:
    """Builds a layer of a stack, unless it was built before, elsewhere or from a file."""
    # A layer without a `build` is built by its first call, as everywhere in Keras.
    if layer is None or layer.built or type(layer).build is keras.layers.Layer.build:
        return
    layer.build(*shapes)


def built_final_norm(stack: CompositeLayer, inputs_shape: tuple) -> LayerNormalization | None:
    """Returns the norm after the last block, or None if there is none."""
    # Pre-norm blocks do not normalize their last sum; post-norm blocks do.
    needs_norm = getattr(stack.blocks[-1], "norm", None) == "pre"
    if not (needs_norm if stack.final_norm is None else stack.final_norm):
        return None
    norm = LayerNormalization(
        stack.epsilon, trainable=stack.trainable, dtype=stack.dtype_policy, name="final_norm"
    )
    norm.build(inputs_shape)
    return norm


def stack_keeps_shape(stack: CompositeLayer) -> bool:
    """Returns whether all blocks and the position are known to keep the shape of their inputs."""
    positions = (type(None), SinusoidalPositionEncoding, LearnedPositionEmbedding)
    # A layer of another class may do anything, and its call may build it.
    return type(stack.position) in positions and all(
        type(block) in (EncoderBlock, DecoderBlock) and block.built for block in stack.blocks
    )


def stack_config(stack: CompositeLayer) -> dict[str, Any]:
    """Returns the arguments of a stack, as `get_config` needs them."""
    configs: list[Any] = []
    first: dict[int, int] = {}
    for index, block in enumerate(stack.blocks):
        # A block that occurred before is saved as the index of its first occurrence.
        is_new = first.setdefault(id(block), index) == index
        configs.append(_unbuilt_config(block) if is_new else first[id(block)])
    return {
        "blocks": configs,  # They say which of their parts are quantized.
        "quantized_parts": {},
        "position": _unbuilt_config(stack.position),
        "dropout": stack.dropout,
        "final_norm": stack.final_norm,
        "epsilon": stack.epsilon,
        "seed": stack.seed,
        "remat": stack.remat,
    }


def _unbuilt_config(layer):
    """Returns a layer's config without its shapes, because the stack builds the layer itself."""
    config = keras.saving.serialize_keras_object(layer)
    if config is not None:
        # In the same dict: Keras marks it if another layer shares the object.
        config.pop("build_config", None)
    return config


def stack_from_config(cls: type[CompositeLayer], config: dict) -> CompositeLayer:
    """Returns the stack of a config that `stack_config` describes."""
    deserialize, blocks = keras.saving.deserialize_keras_object, list[Any]()
    for block in config["blocks"]:
        blocks.append(blocks[block] if isinstance(block, int) else deserialize(block))
    position = deserialize(config["position"])
    layers = [*blocks, *([] if position is None else [position])]
    flags = [layer.trainable for layer in layers]
    config = {**config, "blocks": blocks, "position": position}
    config.pop("quantized_parts", None)
    stack = cls(**config)
    for layer, trainable in zip(layers, flags, strict=True):
        layer.trainable = trainable  # A frozen stack may have trainable parts.
    return stack
