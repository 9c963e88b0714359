"""Position-wise feed-forward network, equation (2)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.configured_layer import KernelLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.kernels.projection import project


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(KernelLayer):
    """Two linear maps with an activation between them, the same at every position.

    `outputs = activation(inputs . W1 + b1) . W2 + b2`, equation (2).

    Args:
        intermediate_dim: Width between the two maps, 2,048 in the paper.
        activation: Activation between the maps, as in `keras.layers.Dense`.
        dropout: Dropout rate after the activation; 0 in the paper, 0.1 in tensor2tensor.
        use_bias: Whether the maps have biases.
        kernel_initializer, bias_initializer, kernel_regularizer: As in `keras.layers.Dense`.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        inputs: `[..., d_model]`.
        training: Whether to apply dropout.

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
        intermediate_dim: int,
        activation: str | Callable = "relu",
        dropout: float = 0.0,
        use_bias: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._keep(
            intermediate_dim=intermediate_dim,
            activation=activation,
            dropout=dropout,
            use_bias=use_bias,
            seed=seed,
        )
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape: tuple) -> None:
        d_model = input_shape[-1]
        self.inner_kernel = self._add_kernel("inner_kernel", d_model, self.intermediate_dim)
        self.outer_kernel = self._add_kernel("outer_kernel", self.intermediate_dim, d_model)
        self.inner_bias = self._add_bias("inner_bias", self.intermediate_dim)
        self.outer_bias = self._add_bias("outer_bias", d_model)
        self.dropout_layer.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, inputs: Tensor) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        hidden = self.activation(project(inputs, self.inner_kernel, self.inner_bias))
        hidden = self.dropout_layer(hidden)
        return project(hidden, self.outer_kernel, self.outer_bias)
