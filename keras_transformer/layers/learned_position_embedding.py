"""Learned position embedding, Table 3 row (E)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers import kernels
from keras_transformer.layers.checks import check_positive_integer
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.shapes import check_rank


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositionEmbedding(keras.layers.Layer):
    """Adds a learned vector per position to the inputs.

    Args:
        max_length: Number of positions in the table.
        embeddings_initializer: Initializer of the table; None for
            `RandomNormal(stddev=d_model**-0.5)`, as in `TiedEmbedding`.

    Call arguments:
        inputs: `[batch, length, d_model]`, `length` at most `max_length`.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1.

    Returns:
        `inputs` plus the position vectors, of the same shape.

    Raises:
        ValueError: If `positions` is None and the length is greater than `max_length`. If the
            length is unknown in a TensorFlow graph, an `InvalidArgumentError` when the graph runs.

    Example:

    >>> layer = keras_transformer.layers.LearnedPositionEmbedding(max_length=256)
    >>> ops.shape(layer(keras.ops.zeros((1, 10, 512))))
    (1, 10, 512)

    Reference: Vaswani et al. (2017), section 3.5 and Table 3 row (E), after Gehring et al. (2017).
    """

    def __init__(
        self, max_length: int, embeddings_initializer: str | Callable | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer("max_length", max_length)
        self.supports_masking = True
        self.max_length = max_length
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape: tuple) -> None:
        d_model = inputs_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, d_model),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        check_rank("inputs", inputs, "[batch, length, d_model]")
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        if positions is None:
            # On torch, Keras infers shapes with meta tensors and makes unknown lengths up.
            if keras.backend.backend() != "torch" or inputs.device.type != "meta":
                self._check_length(inputs.shape)
            length = kernels.checked_length(inputs, self.max_length, self._too_long())
            positions = ops.arange(length, dtype="int32")
        # Not `ops.add`: on TensorFlow it mistakes vectors of length 0 for a bias.
        return inputs + ops.take(self.embeddings, ops.cast(positions, "int32"), axis=0)

    def _check_length(self, inputs_shape):
        length = inputs_shape[1]
        # An unknown length is None, and a symbol where Keras infers shapes on JAX.
        if isinstance(length, int) and length > self.max_length:
            raise ValueError(f"{self._too_long()} Received: inputs.shape={tuple(inputs_shape)}")

    def _too_long(self):
        return f"`inputs` are longer than the table of positions, max_length={self.max_length}."

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:
        self._check_length(inputs_shape)
        return inputs_shape

    def get_config(self) -> dict:
        initializer = self.embeddings_initializer
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "embeddings_initializer": keras.initializers.serialize(initializer),
        }
