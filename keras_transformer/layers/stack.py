"""`Block` and `Stack`: the base classes of what encoder and decoder consist of, section 3.1."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_transformer.checks import check_argument
from keras_transformer.layers.composite_layer import (
    CompositeLayer,
    build_part,
    check_arguments,
    dense_config,
    derive_initializer,
    derive_seed,
    freeze_given,
    is_composite,
    unbuilt_config,
)
from keras_transformer.layers.dropout_and_normalization import Dropout, LayerNormalization
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positions import (
    AttentionPosition,
    LearnedPositionEmbedding,
    SinusoidalPositionEncoding,
    check_position,
)
from keras_transformer.layers.tensors import Tensor, check_shape

# Arguments of blocks that are plain values.
_BLOCK_ARGUMENTS = """
    num_heads intermediate_dim key_dim value_dim dropout attention_dropout activation_dropout
    norm use_bias epsilon sliding_window flash_attention seed
""".split()


class Block(CompositeLayer):
    """Base class of blocks: their arguments, which `EncoderBlock` describes, and their parts."""

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        *,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: str | Callable = "relu",
        norm: str = "post",
        use_bias: bool = False,
        kernel_initializer: str | Callable = "glorot_uniform",
        bias_initializer: str | Callable = "zeros",
        kernel_regularizer: str | Callable | None = None,
        epsilon: float = 1e-6,
        position: AttentionPosition | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.norm = norm
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.epsilon = epsilon
        self.position = position
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.seed = seed
        check_arguments(self, Block)
        check_position(position)
        freeze_given(self, position)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in _BLOCK_ARGUMENTS},
            "activation": keras.activations.serialize(self.activation),
            **dense_config(self),
            "position": unbuilt_config(self.position),
        }

    def _make_attention(self, name, inputs_shape, encoder_outputs_shape=None):
        """Returns the self-attention; with `encoder_outputs_shape`, the cross-attention."""
        d_model, is_self = inputs_shape[-1], encoder_outputs_shape is None
        head_dim = d_model // self.num_heads
        if d_model % self.num_heads and not (self.key_dim and self.value_dim):
            raise ValueError(
                "`num_heads` must divide the width of the inputs unless `key_dim` and `value_dim` "
                f"are given. Received: num_heads={self.num_heads}, width {d_model}"
            )
        layer = MultiHeadAttention(
            self.num_heads,
            self.key_dim or head_dim,
            self.value_dim or head_dim,
            use_bias=self.use_bias,
            dropout=self.attention_dropout,
            position=self.position if is_self else None,
            sliding_window=self.sliding_window if is_self else None,
            flash_attention=self.flash_attention,
            **self._options_of_part(name),
        )
        return build_part(layer, inputs_shape, inputs_shape if is_self else encoder_outputs_shape)

    def _make_feed_forward(self, inputs_shape):
        layer = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=self.activation_dropout,
            **self._options_of_part("feed_forward"),
        )
        return build_part(layer, inputs_shape)

    def _options_of_part(self, name):
        return {
            "kernel_initializer": derive_initializer(self.kernel_initializer, name),
            "bias_initializer": derive_initializer(self.bias_initializer, name),
            "kernel_regularizer": self.kernel_regularizer,
            "seed": derive_seed(self.seed, name),
            "trainable": self.trainable,
            "dtype": self.dtype_policy,
            "name": name,
        }

    def _make_dropout(self, name, inputs_shape):
        """Returns the dropout that follows a sub-layer."""
        options = {"seed": derive_seed(self.seed, name), "dtype": self.dtype_policy, "name": name}
        return build_part(Dropout(self.dropout, **options), inputs_shape)

    def _residual(
        self,
        x: Tensor,
        layers: tuple[Callable, LayerNormalization, Dropout],
        training: bool | None,
    ) -> tuple[Tensor, Any]:
        """Returns `norm(x + dropout(f(x)))`, with pre-norm `x + dropout(f(norm(x)))` (section 3.1).

        The layers are f, the norm and the dropout. f returns outputs, or a tuple of them and
        attention weights or a cache. The second result is the weights or the cache, or None.
        """
        sub_layer, norm, dropout = layers
        is_pre_norm = self.norm == "pre"
        outputs = sub_layer(norm(x, training=training) if is_pre_norm else x, training=training)
        outputs, other = outputs if isinstance(outputs, tuple) else (outputs, None)
        # Not `ops.add`: on TensorFlow it mistakes outputs of length 0 for a bias.
        x = x + dropout(outputs, training=training)
        return x if is_pre_norm else norm(x, training=training), other


def make_norm(parent, name, inputs_shape):
    """Returns a layer norm of a block or a stack."""
    options = {"trainable": parent.trainable, "dtype": parent.dtype_policy, "name": name}
    return build_part(LayerNormalization(parent.epsilon, **options), inputs_shape)


class Stack(CompositeLayer):
    """Base class of stacks: their arguments, which `Encoder` describes, and their parts."""

    def __init__(
        self,
        blocks: Sequence[keras.layers.Layer],
        position: str | keras.layers.Layer | None = "auto",
        dropout: float = 0.1,
        final_norm: bool | None = None,
        epsilon: float = 1e-6,
        seed: int | None = None,
        remat: bool = False,
        embedding_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.blocks = _checked_blocks(blocks, self._is_of_other_stack)
        self.position = _make_position(position, self.blocks, self.dtype_policy)
        self.dropout = dropout
        self.final_norm = final_norm
        self.epsilon = epsilon
        self.seed = seed
        self.remat = remat
        self.embedding_norm = embedding_norm
        check_arguments(self, Stack)
        freeze_given(self, *self.blocks, self.position)
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    @staticmethod
    def _is_of_other_stack(block: Any) -> bool:
        raise NotImplementedError

    def _build_parts(self, inputs_shape, *other_shapes):
        """Builds the layers, unless they were built before, elsewhere or from a file."""
        self.embedding_norm_layer = None
        if self.embedding_norm:
            self.embedding_norm_layer = make_norm(self, "embedding_norm", inputs_shape)
        self.norm_layer, has_norm = None, self.final_norm
        if has_norm is None:
            # Pre-norm blocks do not normalize their last sum; post-norm blocks do.
            has_norm = getattr(self.blocks[-1], "norm", None) == "pre"
        if has_norm:
            self.norm_layer = make_norm(self, "final_norm", inputs_shape)
        self.dropout_layer.build(inputs_shape)
        _build_once(self.position, inputs_shape)
        for block in self.blocks:
            _build_once(block, inputs_shape, *other_shapes)

    def _embed(self, inputs: Tensor, positions: Tensor | None, training: bool | None) -> Tensor:
        """Returns what the first block reads: embedding and position, normalized, with dropout."""
        x = inputs if self.position is None else self.position(inputs, positions=positions)
        if self.embedding_norm_layer is not None:
            x = self.embedding_norm_layer(x, training=training)
        return self.dropout_layer(x, training=training)

    def _keeps_shape(self) -> bool:
        positions = (type(None), SinusoidalPositionEncoding, LearnedPositionEmbedding)
        # A layer of another class may do anything, and its call may build it.
        are_known = all(is_composite(block) and block.built for block in self.blocks)
        return super()._keeps_shape() and are_known and type(self.position) in positions

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "blocks": [self._block_config(index) for index in range(len(self.blocks))],
            "quantized_parts": {},  # In the configs of the blocks.
            "position": unbuilt_config(self.position),
            "dropout": self.dropout,
            "final_norm": self.final_norm,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "remat": self.remat,
            "embedding_norm": self.embedding_norm,
        }

    def _block_config(self, index):
        """Returns the config of a block, or the index of the same block before it.

        If an earlier block has the same position, the config has the index of that block instead.
        """
        block, position = self.blocks[index], getattr(self.blocks[index], "position", None)
        for earlier, other in enumerate(self.blocks[:index]):
            if other is block:
                return earlier
        config = unbuilt_config(block)
        if isinstance(block, Block) and position is not None:
            for earlier, other in enumerate(self.blocks[:index]):
                if getattr(other, "position", None) is position:
                    config["config"]["position"] = None
                    return {**config, "position_of_block": earlier}
        return config

    @classmethod
    def from_config(cls, config: dict) -> Self:
        if "blocks" not in config:  # A subclass makes its blocks from other arguments.
            return super().from_config(config)
        deserialize, blocks = keras.saving.deserialize_keras_object, list[Any]()
        for block in config["blocks"]:
            if isinstance(block, int):
                blocks.append(blocks[block])
                continue
            blocks.append(deserialize(block))
            if "position_of_block" in block:
                blocks[-1].position = blocks[block["position_of_block"]].position
        position = deserialize(config["position"])
        layers = [*blocks, *([] if position is None else [position])]
        flags = [layer.trainable for layer in layers]
        config = {**config, "blocks": blocks, "position": position}
        config.pop("quantized_parts", None)
        stack = cls(**config)
        for layer, trainable in zip(layers, flags, strict=True):
            layer.trainable = trainable  # A frozen stack may have trainable parts.
        return stack


def _checked_blocks(blocks: Sequence[keras.layers.Layer], is_of_other_stack: Any) -> list[Any]:
    """Returns the blocks of a stack as a list, or raises a `ValueError`."""
    is_list = isinstance(blocks, (list, tuple)) and len(blocks) > 0
    are_layers = is_list and all(isinstance(block, keras.layers.Layer) for block in blocks)
    rule = "a list of at least one layer, encoder blocks in an `Encoder` and decoder blocks in a "
    is_allowed = are_layers and not any(map(is_of_other_stack, blocks))
    check_argument(is_allowed, "blocks", f"{rule}`Decoder`", blocks)
    return list(blocks)


def _make_position(position: Any, blocks: list, dtype: Any) -> keras.layers.Layer | None:
    """Returns the position layer of a stack, or raises a `ValueError`."""
    if position == "auto":
        have_positions = any(getattr(block, "position", None) is not None for block in blocks)
        position = None if have_positions else "sinusoidal"
    if position == "sinusoidal":
        return SinusoidalPositionEncoding(dtype=dtype, name="position")
    is_layer = isinstance(position, keras.layers.Layer)
    is_allowed = position is None or (is_layer and not isinstance(position, AttentionPosition))
    rule = "'auto', 'sinusoidal', a layer that adds positions to its inputs, or None; positions of "
    rule += "the attention, such as `RotaryPosition`, belong to the blocks"
    check_argument(is_allowed, "position", rule, position)
    return position


def _build_once(layer, *shapes):
    # A layer without a `build` is built by its first call, as everywhere in Keras.
    has_build = layer is not None and type(layer).build is not keras.layers.Layer.build
    if has_build and not layer.built:
        layer.build(*shapes)


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
    # The second of `others` may be a cache, given by position.
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
