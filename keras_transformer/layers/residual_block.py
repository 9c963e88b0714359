"""Base of the encoder and the decoder block: their arguments, and the residual connection."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer.layers.attention_position import check_position
from keras_transformer.layers.composite_layer import CompositeLayer
from keras_transformer.layers.configured_layer import KernelLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.seeds import derive_initializer, derive_seed

_OPTIONS = {
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "activation": "relu",
    "epsilon": 1e-6,
    "position": None,
    "sliding_window": None,
    "flash_attention": None,
}


class ResidualBlock(CompositeLayer, KernelLayer):
    """Base of `EncoderBlock` and `DecoderBlock`; `EncoderBlock` describes the arguments.

    The sub-layer `NAME` has a norm, `NAME_norm`, and a dropout, named `NAME` + `_dropout_suffix`.
    """

    _dropout_suffix = "_dropout"

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        *,
        norm: str = "post",
        use_bias: bool = False,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        own = {name: options.pop(name, default) for name, default in _OPTIONS.items()}
        check_position(own["position"])
        super().__init__(**options)
        self._keep(
            num_heads=num_heads,
            intermediate_dim=intermediate_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            dropout=dropout,
            norm=norm,
            use_bias=use_bias,
            seed=seed,
            **own,
        )

    def _make_attention(self, name, query_shape, value_shape):
        d_model = query_shape[-1]
        head_dim = d_model // self.num_heads
        if d_model % self.num_heads and not (self.key_dim and self.value_dim):
            raise ValueError(
                "`num_heads` must divide the width of the inputs unless `key_dim` and `value_dim` "
                f"are given. Received: num_heads={self.num_heads}, width {d_model}"
            )
        own = {"position": self.position, "sliding_window": self.sliding_window}
        attention = MultiHeadAttention(
            self.num_heads,
            self.key_dim or head_dim,
            self.value_dim or head_dim,
            use_bias=self.use_bias,
            dropout=self.attention_dropout,
            flash_attention=self.flash_attention,
            **({} if name == "cross_attention" else own),
            **self._part_options(name),
        )
        attention.build(query_shape, value_shape)
        return attention

    def _make_feed_forward(self, shape):
        feed_forward = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=self.activation_dropout,
            **self._part_options("feed_forward"),
        )
        feed_forward.build(shape)
        return feed_forward

    def _part_options(self, name):
        return {
            "kernel_initializer": derive_initializer(self.kernel_initializer, name),
            "bias_initializer": derive_initializer(self.bias_initializer, name),
            "kernel_regularizer": self.kernel_regularizer,
            "seed": derive_seed(self.seed, name),
            "trainable": self.trainable,
            "dtype": self.dtype_policy,
            "name": name,
        }

    def _make_residual(self, name, shape):
        """Makes the norm and the dropout of a sub-layer."""
        options = {"trainable": self.trainable, "dtype": self.dtype_policy}
        norm = LayerNormalization(epsilon=self.epsilon, name=f"{name}_norm", **options)
        norm.build(shape)
        setattr(self, f"{name}_norm", norm)
        seed = derive_seed(self.seed, f"{name}_dropout")
        dropout = Dropout(self.dropout, seed, dtype=self.dtype_policy, name=f"{name}_dropout")
        dropout.build(shape)
        setattr(self, f"{name}{self._dropout_suffix}", dropout)

    def _apply_residual(self, inputs: Tensor, name: str, sublayer: Callable) -> tuple:
        """Applies a function f, the sub-layer `name`, with norm and residual connection.

        Post-norm (the paper, section 5.4): LayerNorm(x + Dropout(f(x))); pre-norm:
        x + Dropout(f(LayerNorm(x))). Returns the outputs, and the second value of f or None.
        """
        norm = getattr(self, f"{name}_norm")
        dropout = getattr(self, f"{name}{self._dropout_suffix}")
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        outputs = sublayer(norm(inputs) if self.norm == "pre" else inputs)
        outputs, extra = outputs if isinstance(outputs, tuple) else (outputs, None)
        # Not `ops.add`: on TensorFlow it mistakes outputs of length 0 for a bias.
        outputs = inputs + dropout(outputs)
        return (outputs if self.norm == "pre" else norm(outputs)), extra
