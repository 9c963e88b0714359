"""What encoder and decoder blocks share: their arguments, and the residual connection."""

import keras
from keras import ops

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


class ResidualBlock(CompositeLayer):
    """Base of `EncoderBlock` and `DecoderBlock`; their docstrings describe the arguments."""

    def __init__(
        self,
        num_heads,
        intermediate_dim,
        key_dim=None,
        value_dim=None,
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        norm="post",
        use_bias=False,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        epsilon=1e-6,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_integer("num_heads", num_heads)
        check_positive_integer("intermediate_dim", intermediate_dim)
        for name, value in (("key_dim", key_dim), ("value_dim", value_dim)):
            if value is not None:
                check_positive_integer(name, value)
        check_choice("norm", norm, ("post", "pre"))
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        check_rate("activation_dropout", activation_dropout)
        check_boolean("use_bias", use_bias)
        check_positive_number("epsilon", epsilon)
        check_seed(seed)
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
        self.seed = seed
        self.supports_masking = True

    def _head_dim(self, d_model):
        """Return `d_model / num_heads`, the paper's size of keys and values."""
        if d_model % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the inputs unless `key_dim` and `value_dim` "
                f"are given. Received: num_heads={self.num_heads}, width {d_model}"
            )
        return d_model // self.num_heads

    def _make_attention(self, name, d_model):
        return MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=self.key_dim or self._head_dim(d_model),
            value_dim=self.value_dim or self._head_dim(d_model),
            use_bias=self.use_bias,
            dropout=self.attention_dropout,
            kernel_initializer=derive_initializer(self.kernel_initializer, name),
            bias_initializer=derive_initializer(self.bias_initializer, name),
            kernel_regularizer=self.kernel_regularizer,
            seed=derive_seed(self.seed, name),
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name=name,
        )

    def _make_feed_forward(self):
        return FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=self.activation_dropout,
            kernel_initializer=derive_initializer(self.kernel_initializer, "feed_forward"),
            bias_initializer=derive_initializer(self.bias_initializer, "feed_forward"),
            kernel_regularizer=self.kernel_regularizer,
            seed=derive_seed(self.seed, "feed_forward"),
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    def _make_residual(self, name, shape):
        """Return the built norm and dropout of a sub-layer."""
        norm = LayerNormalization(
            epsilon=self.epsilon,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name=f"{name}_norm",
        )
        norm.build(shape)
        name = f"{name}_dropout"
        seed = derive_seed(self.seed, name)
        dropout = Dropout(self.dropout, seed=seed, dtype=self.dtype_policy, name=name)
        return norm, dropout

    def _apply_residual(self, inputs, sublayer, norm, dropout, training):
        """Wrap `sublayer`, a function from states to (states, anything), in norm and residual.

        Post-norm (the paper, section 5.4): LayerNorm(x + Dropout(f(x))); pre-norm:
        x + Dropout(f(LayerNorm(x))).
        """
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts floats alone.
        # Not `ops.add`, which takes outputs of no positions for a bias on TensorFlow.
        if self.norm == "pre":
            outputs, extra = sublayer(norm(inputs))
            return inputs + dropout(outputs, training=training), extra
        outputs, extra = sublayer(inputs)
        return norm(inputs + dropout(outputs, training=training)), extra

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "activation": keras.activations.serialize(self.activation),
            "norm": self.norm,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "epsilon": self.epsilon,
            "seed": self.seed,
        }
