"""The arguments and the parts that encoder and decoder blocks have in common."""

from typing import Any

import keras

from keras_transformer.layers.attention_position import AttentionPosition, check_position
from keras_transformer.layers.checks import (
    check_boolean,
    check_choice,
    check_positive_integer,
    check_positive_number,
    check_rate,
    check_seed,
)
from keras_transformer.layers.composite_layer import CompositeLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.seeds import derive_initializer, derive_seed


def check_block(block: CompositeLayer) -> None:
    """Raises `ValueError` unless the arguments of a block, which it has as attributes, are allowed.

    The parts of a block check them too, but not before the block is built.
    """
    check_positive_integer("num_heads", block.num_heads)
    check_positive_integer("intermediate_dim", block.intermediate_dim)
    for name in ("key_dim", "value_dim", "sliding_window"):
        if getattr(block, name) is not None:
            check_positive_integer(name, getattr(block, name))
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        check_rate(name, getattr(block, name))
    check_choice("norm", block.norm, ("post", "pre"))
    check_boolean("use_bias", block.use_bias)
    check_positive_number("epsilon", block.epsilon)
    check_position(block.position)
    if block.flash_attention is not None:
        check_boolean("flash_attention", block.flash_attention)
    check_seed(block.seed)


def block_config(block: CompositeLayer) -> dict[str, Any]:
    """Returns the arguments of a block, as `get_config` needs them."""
    return {
        "num_heads": block.num_heads,
        "intermediate_dim": block.intermediate_dim,
        "key_dim": block.key_dim,
        "value_dim": block.value_dim,
        "dropout": block.dropout,
        "attention_dropout": block.attention_dropout,
        "activation_dropout": block.activation_dropout,
        "activation": keras.activations.serialize(block.activation),
        "norm": block.norm,
        "use_bias": block.use_bias,
        "kernel_initializer": keras.initializers.serialize(block.kernel_initializer),
        "bias_initializer": keras.initializers.serialize(block.bias_initializer),
        "kernel_regularizer": keras.regularizers.serialize(block.kernel_regularizer),
        "epsilon": block.epsilon,
        "position": keras.saving.serialize_keras_object(block.position),
        "sliding_window": block.sliding_window,
        "flash_attention": block.flash_attention,
        "seed": block.seed,
    }


def built_attention(
    block: CompositeLayer,
    name: str,
    query_shape: tuple,
    value_shape: tuple,
    position: AttentionPosition | None = None,
    sliding_window: int | None = None,
) -> MultiHeadAttention:
    """Returns an attention of a block; `position` and `sliding_window` are for self-attention."""
    d_model = query_shape[-1]
    head_dim = d_model // block.num_heads
    if d_model % block.num_heads and not (block.key_dim and block.value_dim):
        raise ValueError(
            "`num_heads` must divide the width of the inputs unless `key_dim` and `value_dim` "
            f"are given. Received: num_heads={block.num_heads}, width {d_model}"
        )
    attention = MultiHeadAttention(
        block.num_heads,
        block.key_dim or head_dim,
        block.value_dim or head_dim,
        use_bias=block.use_bias,
        dropout=block.attention_dropout,
        position=position,
        sliding_window=sliding_window,
        flash_attention=block.flash_attention,
        **_common_arguments(block, name),
    )
    attention.build(query_shape, value_shape)
    return attention


def built_feed_forward(block: CompositeLayer, inputs_shape: tuple) -> FeedForward:
    """Returns the feed-forward network of a block."""
    feed_forward = FeedForward(
        block.intermediate_dim,
        activation=block.activation,
        dropout=block.activation_dropout,
        **_common_arguments(block, "feed_forward"),
    )
    feed_forward.build(inputs_shape)
    return feed_forward


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


def built_norm(block: CompositeLayer, name: str, inputs_shape: tuple) -> LayerNormalization:
    """Returns the layer norm of a sub-layer."""
    trainable, dtype = block.trainable, block.dtype_policy
    norm = LayerNormalization(block.epsilon, trainable=trainable, dtype=dtype, name=name)
    norm.build(inputs_shape)
    return norm


def built_dropout(block: CompositeLayer, name: str, inputs_shape: tuple) -> Dropout:
    """Returns the dropout of the outputs of a sub-layer."""
    seed = derive_seed(block.seed, name)
    dropout = Dropout(block.dropout, seed, dtype=block.dtype_policy, name=name)
    dropout.build(inputs_shape)
    return dropout
