"""Functions that make the sub-layers of blocks, and those that encoder and decoder share."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_argument
from keras_transformer.layers.composite_layer import (
    CompositeLayer,
    build_part,
    dense_config,
    derive_initializer,
    derive_seed,
    is_composite,
)
from keras_transformer.layers.dropout_and_normalization import Dropout, LayerNormalization
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.position_encoding import (
    LearnedPositionEmbedding,
    SinusoidalPositionEncoding,
)
from keras_transformer.layers.tensors import Tensor, check_shape

# Arguments of blocks that are plain values.
_BLOCK_ARGUMENTS = """
    num_heads intermediate_dim key_dim value_dim dropout attention_dropout activation_dropout
    norm use_bias epsilon sliding_window flash_attention seed
""".split()


def make_attention(block, name, inputs_shape, encoder_outputs_shape=None):
    """Returns the self-attention of a block; with `encoder_outputs_shape`, the cross-attention."""
    d_model, is_self = inputs_shape[-1], encoder_outputs_shape is None
    head_dim = d_model // block.num_heads
    if d_model % block.num_heads and not (block.key_dim and block.value_dim):
        raise ValueError(
            "`num_heads` must divide the width of the inputs unless `key_dim` and `value_dim` "
            f"are given. Received: num_heads={block.num_heads}, width {d_model}"
        )
    layer = MultiHeadAttention(
        block.num_heads,
        block.key_dim or head_dim,
        block.value_dim or head_dim,
        use_bias=block.use_bias,
        dropout=block.attention_dropout,
        position=block.position if is_self else None,
        sliding_window=block.sliding_window if is_self else None,
        flash_attention=block.flash_attention,
        **_common_arguments(block, name),
    )
    return build_part(layer, inputs_shape, inputs_shape if is_self else encoder_outputs_shape)


def make_feed_forward(block, inputs_shape):
    """Returns the feed-forward network of a block."""
    layer = FeedForward(
        block.intermediate_dim,
        activation=block.activation,
        dropout=block.activation_dropout,
        **_common_arguments(block, "feed_forward"),
    )
    return build_part(layer, inputs_shape)


def _common_arguments(block, name):
    return {
        "kernel_initializer": derive_initializer(block.kernel_initializer, name),
        "bias_initializer": derive_initializer(block.bias_initializer, name),
        "kernel_regularizer": block.kernel_regularizer,
        "seed": derive_seed(block.seed, name),
        "trainable": block.trainable,
        "dtype": block.dtype_policy,
        "name": name,
    }


def make_norm(parent, name, inputs_shape):
    """Returns a layer norm of a block or a stack."""
    options = {"trainable": parent.trainable, "dtype": parent.dtype_policy, "name": name}
    return build_part(LayerNormalization(parent.epsilon, **options), inputs_shape)


def make_dropout(block, name, inputs_shape):
    """Returns the dropout that follows a sub-layer of a block."""
    options = {"seed": derive_seed(block.seed, name), "dtype": block.dtype_policy, "name": name}
    return build_part(Dropout(block.dropout, **options), inputs_shape)


def residual(
    x: Tensor,
    sub_layer: Callable,
    norm: LayerNormalization,
    dropout: Dropout,
    is_pre_norm: bool,
    training: bool | None,
) -> tuple[Tensor, Any]:
    """Returns `norm(x + dropout(f(x)))`, with pre-norm `x + dropout(f(norm(x)))` (section 3.1).

    The sub-layer f returns outputs, or a tuple of them and attention weights or a cache. The second
    result is the weights or the cache, or None.
    """
    outputs = sub_layer(norm(x, training=training) if is_pre_norm else x, training=training)
    outputs, other = outputs if isinstance(outputs, tuple) else (outputs, None)
    # Not `ops.add`: on TensorFlow it mistakes outputs of length 0 for a bias.
    x = x + dropout(outputs, training=training)
    return x if is_pre_norm else norm(x, training=training), other


def check_inputs(
    inputs: Tensor,
    encoder_outputs: Tensor | None = None,
    padding_mask: Tensor | None = None,
    encoder_padding_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    *others: Any,
    cache: Any = None,
    **options: Any,
) -> None:
    """Raises a `ValueError` if the arguments of a block's or a stack's call do not fit together."""
    check_shape("inputs", inputs, "[batch, length, d_model]")
    batch, length = inputs.shape[:2]
    # A cache has further keys, and each of its entries may serve several entries of `inputs`.
    keys, sources = (length, batch) if cache is None and len(others) < 2 else (None, None)
    shape = "[batch, source_length, encoder_width]"
    check_shape("encoder_outputs", encoder_outputs, shape, sources)
    source = None if encoder_outputs is None else encoder_outputs.shape[1]
    shape = "[batch or 1, length or 1, keys]"
    check_shape("padding_mask", padding_mask, "[batch, keys]", batch, keys)
    check_shape("attention_mask", attention_mask, shape, batch, length, keys)
    check_shape("encoder_padding_mask", encoder_padding_mask, "[batch, keys]", sources, source)
    check_shape("encoder_attention_mask", encoder_attention_mask, shape, sources, length, source)


def check_encoder_inputs(inputs, padding_mask=None, attention_mask=None, *others, **options):
    """Raises a `ValueError` if the arguments of an encoder's call do not fit together."""
    check_inputs(inputs, None, padding_mask, None, attention_mask)


def checked_blocks(blocks: Sequence[keras.layers.Layer], is_of_other_stack: Any) -> list[Any]:
    """Returns the blocks of a stack as a list, or raises a `ValueError`."""
    is_list = isinstance(blocks, (list, tuple)) and len(blocks) > 0
    are_layers = is_list and all(isinstance(block, keras.layers.Layer) for block in blocks)
    rule = "a list of at least one layer, encoder blocks in an `Encoder` and decoder blocks in a "
    is_allowed = are_layers and not any(map(is_of_other_stack, blocks))
    check_argument(is_allowed, "blocks", f"{rule}`Decoder`", blocks)
    return list(blocks)


def make_position(position: Any, blocks: list, dtype: Any) -> keras.layers.Layer | None:
    """Returns the position layer of a stack, or raises a `ValueError`."""
    if position == "auto":
        have_positions = any(getattr(block, "position", None) is not None for block in blocks)
        position = None if have_positions else "sinusoidal"
    if position == "sinusoidal":
        return SinusoidalPositionEncoding(dtype=dtype, name="position")
    is_layer = position is None or isinstance(position, keras.layers.Layer)
    rule = "'auto', 'sinusoidal', a layer that adds positions to its inputs, or None"
    check_argument(is_layer, "position", rule, position)
    return position


def freeze(stack: CompositeLayer) -> None:
    """Freezes the blocks and the position of a frozen stack."""
    if not stack.trainable:
        # Keras freezes the parts when `trainable` is set, not when it is an argument.
        for layer in _given_layers(stack.blocks, stack.position):
            layer.trainable = False


def _given_layers(blocks, position):
    return [*blocks, *([] if position is None else [position])]


def build(stack: CompositeLayer, inputs_shape: tuple, *other_shapes: tuple) -> None:
    """Builds the layers of a stack, unless they were built before, elsewhere or from a file."""
    stack.norm_layer, has_norm = None, stack.final_norm
    if has_norm is None:
        # Pre-norm blocks do not normalize their last sum; post-norm blocks do.
        has_norm = getattr(stack.blocks[-1], "norm", None) == "pre"
    if has_norm:
        stack.norm_layer = make_norm(stack, "final_norm", inputs_shape)
    stack.dropout_layer.build(inputs_shape)
    _build_once(stack.position, inputs_shape)
    for block in stack.blocks:
        _build_once(block, inputs_shape, *other_shapes)


def _build_once(layer, *shapes):
    # A layer without a `build` is built by its first call, as everywhere in Keras.
    has_build = layer is not None and type(layer).build is not keras.layers.Layer.build
    if has_build and not layer.built:
        layer.build(*shapes)


def keeps_shape(stack: CompositeLayer) -> bool:
    """Returns whether all blocks and the position are known to keep the shape of their inputs."""
    positions = (type(None), SinusoidalPositionEncoding, LearnedPositionEmbedding)
    # A layer of another class may do anything, and its call may build it.
    return type(stack.position) in positions and all(
        is_composite(block) and block.built for block in stack.blocks
    )


def config(stack: CompositeLayer) -> dict[str, Any]:
    """Returns the arguments of a stack, as `get_config` needs them."""
    configs: list[Any] = []
    for index, block in enumerate(stack.blocks):
        # A block that occurred before is saved as the index of its first occurrence.
        first = next(i for i, other in enumerate(stack.blocks) if other is block)
        configs.append(_unbuilt_config(block) if first == index else first)
    return {
        "blocks": configs,
        "quantized_parts": {},  # In the configs of the blocks.
        "position": _unbuilt_config(stack.position),
        "dropout": stack.dropout,
        "final_norm": stack.final_norm,
        "epsilon": stack.epsilon,
        "seed": stack.seed,
        "remat": stack.remat,
    }


def block_config(block: CompositeLayer) -> dict[str, Any]:
    """Returns the arguments of a block, as `get_config` needs them."""
    return {
        **{name: getattr(block, name) for name in _BLOCK_ARGUMENTS},
        "activation": keras.activations.serialize(block.activation),
        **dense_config(block),
        "position": keras.saving.serialize_keras_object(block.position),
    }


def _unbuilt_config(layer):
    """Returns a layer's config without its shapes, because the stack builds the layer itself."""
    config = keras.saving.serialize_keras_object(layer)
    if config is not None:
        # In the same dict: Keras marks it if another layer shares the object.
        config.pop("build_config", None)
    return config


def from_config(cls: type[CompositeLayer], config: dict) -> CompositeLayer:
    """Returns the stack of a config that the function `config` returned."""
    deserialize, blocks = keras.saving.deserialize_keras_object, list[Any]()
    for block in config["blocks"]:
        blocks.append(blocks[block] if isinstance(block, int) else deserialize(block))
    position = deserialize(config["position"])
    layers = _given_layers(blocks, position)
    flags = [layer.trainable for layer in layers]
    config = {**config, "blocks": blocks, "position": position}
    config.pop("quantized_parts", None)
    stack = cls(**config)
    for layer, trainable in zip(layers, flags, strict=True):
        layer.trainable = trainable  # A frozen stack may have trainable parts.
    return stack


def recomputed(block, training):
    """Returns a function that applies a block, and whose gradient recomputes it (`keras.remat`).

    With `keras.remat` alone, the recomputation would draw another dropout mask, or none.
    """
    seeds = []
    if training:  # Otherwise nothing draws from them, and an export cannot hold them.
        weights = {id(weight) for weight in block.weights}
        seeds = [variable for variable in block.variables if id(variable) not in weights]
    # On JAX the new seeds are results of the function; elsewhere they are set in it.
    is_functional = keras.backend.backend() == "jax"

    def call(inputs, *others, **arguments):
        before = [ops.copy(seed) for seed in seeds]

        @keras.remat
        def compute(inputs, *others):
            for seed, value in zip(seeds, before, strict=True):
                seed.assign(value)
            outputs = block(inputs, *others, training=bool(training), **arguments)
            return (outputs, [ops.copy(seed) for seed in seeds]) if is_functional else outputs

        outputs = compute(inputs, *others)
        if is_functional:
            outputs, after = outputs
            for seed, value in zip(seeds, after, strict=True):
                seed.assign(value)
        return outputs

    return call
