"""Learned position embedding, Table 3 row (E)."""

import keras
from keras import ops

from keras_transformer.layers.checks import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositionEmbedding(keras.layers.Layer):
    """Adds a learned vector per position to the inputs.

    Args:
        max_length: Number of positions in the table.
        embeddings_initializer: Initialiser of the table; None for N(0, d_model^-0.5), that of
            the token embedding.

    Call arguments:
        inputs: `[batch, length, d_model]`, `length` at most `max_length`.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1.

    Returns:
        `inputs` plus the position vectors, of the same shape.

    Raises:
        ValueError: If the length is known and greater than `max_length`.

    Example:

    >>> layer = keras_transformer.layers.LearnedPositionEmbedding(max_length=256)
    >>> layer(keras.ops.zeros((1, 10, 512))).shape
    (1, 10, 512)

    Reference: Vaswani et al. (2017), section 3.5 and Table 3 row (E), after Gehring et al. (2017).
    """

    def __init__(self, max_length, embeddings_initializer=None, **kwargs):
        super().__init__(**kwargs)
        check_positive_integer("max_length", max_length)
        self.max_length = max_length
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        d_model = inputs_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, d_model),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )
        self.built = True

    def call(self, inputs, positions=None):
        self._check_length(inputs.shape)
        if positions is None:
            positions = ops.arange(ops.shape(inputs)[1], dtype="int32")
        return ops.add(inputs, ops.take(self.embeddings, positions, axis=0))

    def _check_length(self, inputs_shape):
        length = inputs_shape[1]
        if length is not None and length > self.max_length:
            raise ValueError(
                f"`inputs` are longer than the table of positions, max_length={self.max_length}. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )

    def compute_output_shape(self, inputs_shape):
        self._check_length(inputs_shape)
        return inputs_shape

    def get_config(self):
        initializer = self.embeddings_initializer
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "embeddings_initializer": initializer and keras.initializers.serialize(initializer),
        }
