"""Position-wise feed-forward network, equation (2)."""

import keras
from keras import ops

from keras_transformer.layers.checks import (
    check_boolean,
    check_positive_integer,
    check_rate,
    check_seed,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.projection import project
from keras_transformer.layers.seeds import derive_initializer


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """Two linear maps with an activation between them, the same at every position.

    `outputs = activation(inputs . W1 + b1) . W2 + b2`, equation (2).

    Args:
        intermediate_dim: Width between the two maps, 2,048 in the paper.
        activation: Activation between the maps, as in `keras.layers.Dense`.
        dropout: Dropout rate after the activation; 0 in the paper, 0.1 in tensor2tensor's later
            settings.
        use_bias: Whether the maps have biases.
        kernel_initializer: Initialiser of both matrices.
        bias_initializer: Initialiser of both biases.
        kernel_regularizer: Regulariser of both matrices.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        inputs: `[..., d_model]`.
        training: Whether to drop.

    Returns:
        A tensor of the shape of `inputs`.

    Example:

    >>> layer = keras_transformer.layers.FeedForward(2048)
    >>> ops.shape(layer(keras.random.normal((2, 5, 512))))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.3, equation (2).
    """

    def __init__(
        self,
        intermediate_dim,
        activation="relu",
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_integer("intermediate_dim", intermediate_dim)
        check_rate("dropout", dropout)
        check_boolean("use_bias", use_bias)
        check_seed(seed)
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed = seed
        self.supports_masking = True
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape):
        d_model = input_shape[-1]
        self.inner_kernel = self._add_kernel("inner_kernel", (d_model, self.intermediate_dim))
        self.outer_kernel = self._add_kernel("outer_kernel", (self.intermediate_dim, d_model))
        self.inner_bias = self._add_bias("inner_bias", self.intermediate_dim)
        self.outer_bias = self._add_bias("outer_bias", d_model)
        self.built = True

    def _add_kernel(self, name, shape):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=derive_initializer(self.kernel_initializer, name),
            regularizer=self.kernel_regularizer,
        )

    def _add_bias(self, name, size):
        if not self.use_bias:
            return None
        initializer = derive_initializer(self.bias_initializer, name)
        return self.add_weight(name=name, shape=(size,), initializer=initializer)

    def call(self, inputs, training=None):
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts floats alone.
        hidden = self.activation(project(inputs, self.inner_kernel, self.inner_bias))
        hidden = self.dropout_layer(hidden, training=training)
        return project(hidden, self.outer_kernel, self.outer_bias)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "seed": self.seed,
        }
