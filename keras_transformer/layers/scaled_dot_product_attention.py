"""Scaled dot-product attention, equation (1)."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.dtypes import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledDotProductAttention(AttentionFunction):
    """Attends by products of queries and keys: `softmax(query . key^T / sqrt(key_dim)) . value`.

    The softmax is computed in at least float32. A query that may attend to no key gets exact
    zeros.

    Args:
        dropout: Dropout rate of the attention weights.
        scale: Factor of the scores; None for `1 / sqrt(key_dim)`, 1 for the plain dot product.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query: `[batch, heads, query_length, key_dim]`.
        key: `[batch, heads, key_length, key_dim]`; or a tuple of such tensors, parts that follow
            each other.
        value: `[batch, heads, key_length, value_dim]`, or a tuple of as many parts.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend.
        distances: `DistanceVectors` of queries and keys, or None.
        return_attention_scores: Whether to return the weights as well.
        training: Whether to drop attention weights.

    Returns:
        `[batch, heads, query_length, value_dim]`, or with `return_attention_scores=True` a tuple
        of that and the weights `[batch, heads, query_length, key_length]`.

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
