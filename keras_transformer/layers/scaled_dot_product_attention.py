"""Scaled dot-product attention, equation (1)."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.dtypes import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledDotProductAttention(AttentionFunction):
    """Attends by products of queries and keys: `softmax(query . key^T / sqrt(key_dim)) . value`.

    Args:
        dropout: Dropout rate of the attention weights.
        scale: Factor of the scores; None for `1 / sqrt(key_dim)`, 1 for the plain dot product.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query, key, value, attention_mask, distances, return_attention_scores, training: As in
            `AttentionFunction`.

    Returns:
        As `AttentionFunction`.

    Example:

    >>> query = keras.random.normal((2, 8, 5, 64))
    >>> key = keras.random.normal((2, 8, 7, 64))
    >>> ops.shape(keras_transformer.layers.ScaledDotProductAttention()(query, key, key))
    (2, 8, 5, 64)

    Reference: Vaswani et al. (2017), section 3.2.1, equation (1).
    """

    def __init__(
        self,
        dropout: float = 0.0,
        seed: int | None = None,
        scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout, seed, **kwargs)
        self._keep(scale=scale)

    def _scaled(self, query: Tensor) -> Tensor:
        # Scaling the queries is cheaper than scaling the scores, and the same.
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        return ops.multiply(query, scale)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return ops.matmul(query, ops.swapaxes(key, -1, -2))
