"""Position-wise feed-forward network, equation (2)."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.composite_layer import (
    CompositeLayer,
    built_dense,
    check_arguments,
    dense_config,
    load_version_1,
    quantize_parts,
)
from keras_transformer.layers.dropout_and_normalization import Dropout
from keras_transformer.layers.tensors import Tensor, reshape


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(CompositeLayer):
    """Two linear maps with an activation between them, the same at every position.

    `outputs = activation(inputs . W1 + b1) . W2 + b2`, equation (2). The maps are
    `keras.layers.Dense` layers, `inner_dense` and `outer_dense`.

    Args:
        intermediate_dim: Width between the two maps, 2,048 in the paper.
        dropout: Dropout rate after the activation; 0 in the paper, 0.1 in tensor2tensor.
        seed: Integer seed of the dropout, or None.
        activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer: As in
            `keras.layers.Dense`.

    Call arguments:
        inputs: `[..., d_model]`; the outputs have the same shape.
        training: Whether to apply dropout.

    Example:

    >>> layer = keras_transformer.layers.FeedForward(2048)
    >>> ops.shape(layer(keras.random.normal((2, 5, 512))))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.3, equation (2).
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: str | Callable = "relu",
        dropout: float = 0.0,
        use_bias: bool = True,
        seed: int | None = None,
        kernel_initializer: str | Callable = "glorot_uniform",
        bias_initializer: str | Callable = "zeros",
        kernel_regularizer: str | Callable | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.use_bias = use_bias
        self.seed = seed
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        check_arguments(self, FeedForward)
        self.dropout_layer = None
        if dropout:
            dtype = self.dtype_policy
            self.dropout_layer = Dropout(dropout, seed=seed, dtype=dtype, name="dropout")

    def build(self, inputs_shape: tuple) -> None:
        d_model, hidden = inputs_shape[-1], self.intermediate_dim
        self.inner_dense = built_dense(self, "inner", d_model, hidden, activation=self.activation)
        self.outer_dense = built_dense(self, "outer", hidden, d_model)
        if self.dropout_layer is not None:
            self.dropout_layer.build((*inputs_shape[:-1], hidden))
        quantize_parts(self, self.quantized_parts)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        # On TensorFlow, a product of two matrices is several times faster than one of three axes.
        # [..., d_model] -> [positions, d_model]
        hidden = self.inner_dense(reshape(inputs, (-1, inputs.shape[-1])))
        if self.dropout_layer is not None:
            hidden = self.dropout_layer(hidden, training=training)
        # [positions, d_model] -> [..., d_model]
        return reshape(self.outer_dense(hidden), ops.shape(inputs))

    # Optimizers and SavedModels store values in the order of version 1.0: kernels before biases.

    @property
    def weights(self) -> list:
        return sorted(super().weights, key=_rank)

    @property
    def variables(self) -> list:
        return sorted(super().variables, key=_rank)

    def load_own_variables(self, store: Mapping) -> None:
        maps = [self.inner_dense, self.outer_dense]
        weights = [*(dense.kernel for dense in maps), *(dense.bias for dense in maps)]
        if not load_version_1(store, maps, [weight for weight in weights if weight is not None]):
            super().load_own_variables(store)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "seed": self.seed,
            **dense_config(self),
        }


def _rank(variable):
    parent, name = variable.path.split("/")[-2:]
    return int(name == "bias") if parent in ("inner", "outer") else 2
