"""Base of layers that hold matrices."""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.layers.seeds import derive_initializer


class KernelLayer(keras.layers.Layer):
    """Base of layers with matrices and biases, each of which draws its own initial values.

    Args:
        kernel_initializer: Initialiser of the matrices.
        bias_initializer: Initialiser of the biases.
        kernel_regularizer: Regulariser of the matrices.
        **kwargs: As in `keras.layers.Layer`.
    """

    def __init__(
        self,
        kernel_initializer: str | Callable = "glorot_uniform",
        bias_initializer: str | Callable = "zeros",
        kernel_regularizer: str | Callable | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.supports_masking = True

    def _add_kernel(self, name, input_dim, output_dim):
        return self.add_weight(
            name=name,
            shape=(input_dim, output_dim),
            initializer=derive_initializer(self.kernel_initializer, name),
            regularizer=self.kernel_regularizer,
        )

    def _add_bias(self, name, size):
        if not self.use_bias:
            return None
        initializer = derive_initializer(self.bias_initializer, name)
        return self.add_weight(name=name, shape=(size,), initializer=initializer)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }
