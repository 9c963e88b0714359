"""Base of attention functions: scores of queries and keys become weights of values."""

import abc
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_position import DistanceVectors
from keras_transformer.layers.checks import check_rate, check_seed
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import causal_mask, combine_masks

# Added to masked scores in float32 or float64: exp() of it is exactly 0, and it cannot overflow.
_MASKED_SCORE = -1e30


class AttentionFunction(keras.layers.Layer, abc.ABC):
    """Attends: `softmax(score(query, key)) . value`. A subclass implements `score`.

    The softmax is computed in at least float32. A query that may attend to no key gets exact
    zeros. Tensors may have further axes before the last two, such as the blocks of a window.

    Args:
        dropout: Dropout rate of the attention weights.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query: `[batch, heads, query_length, key_dim]`.
        key: `[batch, heads, key_length, key_dim]`, or a tuple of such tensors, which are
            consecutive parts of the sequence.
        value: `[batch, heads, key_length, value_dim]`, or a tuple of as many parts.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend.
        use_causal_mask: Whether a query may attend only to its own and earlier positions.
        distances: `DistanceVectors` of queries and keys, or None.
        return_attention_scores: Whether to return the weights as well.
        training: Whether to apply dropout to the attention weights.

    Returns:
        `[batch, heads, query_length, value_dim]`. With `return_attention_scores=True`, a tuple of
        this tensor and the weights `[batch, heads, query_length, key_length]`.

    Example:

    >>> class Distance(keras_transformer.layers.AttentionFunction):
    ...     def score(self, query, key):
    ...         difference = ops.expand_dims(query, -2) - ops.expand_dims(key, -3)
    ...         return -ops.sum(difference**2, axis=-1)
    >>> query = keras.random.normal((2, 8, 5, 64))
    >>> ops.shape(Distance()(query, query, query))
    (2, 8, 5, 64)
    """

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_rate("dropout", dropout)
        self.supports_masking = True
        self.dropout = dropout
        self.seed = seed
        check_seed(seed)
        self.dropout_layer = None
        if dropout:
            dtype = self.dtype_policy
            self.dropout_layer = Dropout(dropout, seed=seed, dtype=dtype, name="dropout")

    def build(self, query_shape: tuple, key_shape: tuple, value_shape: tuple) -> None:
        if self.dropout_layer is not None:
            self.dropout_layer.build((*query_shape[:-1], key_shape[-2]))

    def get_config(self) -> dict:
        return {**super().get_config(), "dropout": self.dropout, "seed": self.seed}

    @abc.abstractmethod
    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Returns the scores `[..., query_length, key_length]`.

        Args:
            query: `[..., query_length, key_dim]`.
            key: `[..., key_length, key_dim]`.
        """

    def call(
        self,
        query: Tensor,
        key: Tensor | tuple,
        value: Tensor | tuple,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        distances: DistanceVectors | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        parts = [self.score(query, part) for part in (key if isinstance(key, tuple) else (key,))]
        # [batch, heads, query, key]
        scores = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)
        if distances is not None:
            scores = scores + distances.scores(query)
        scores = ops.cast(scores, keras.backend.result_type(self.compute_dtype, "float32"))
        if use_causal_mask:
            query_length, key_length = ops.shape(scores)[-2:]
            causal = causal_mask(query_length, key_length, 0)
            attention_mask = combine_masks(causal, attention_mask)
        row_is_alive = None
        if attention_mask is not None:
            mask = ops.expand_dims(attention_mask, 1)  # [batch or 1, 1, query or 1, key]
            scores = scores + ops.where(mask, 0.0, ops.cast(_MASKED_SCORE, scores.dtype))
            row_is_alive = ops.any(mask, axis=-1, keepdims=True)
        # Keras warns of a softmax over one key, which the first step of decoding has.
        weights = ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)
        weights = ops.cast(weights, self.compute_dtype)
        if row_is_alive is not None and return_attention_scores:
            weights = ops.multiply(weights, ops.cast(row_is_alive, weights.dtype))
        if self.dropout_layer is not None:
            weights = self.dropout_layer(weights, training=training)
        outputs = _weighted_sum(weights, value)  # [batch, heads, query, value_dim]
        if distances is not None:
            outputs = outputs + distances.weighted_sum(weights)
        if row_is_alive is not None:
            outputs = ops.multiply(outputs, ops.cast(row_is_alive, outputs.dtype))
        return (outputs, weights) if return_attention_scores else outputs

    def compute_output_spec(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if args or kwargs.get("return_attention_scores"):
            # Keras finds both outputs by tracing `call`.
            return keras.Operation.compute_output_spec(self, query, key, value, *args, **kwargs)
        value = value[0] if isinstance(value, tuple) else value
        shape = self.compute_output_shape(query.shape, None, value.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def compute_output_shape(
        self, query_shape: tuple, key_shape: tuple | None, value_shape: tuple
    ) -> tuple:
        return (*query_shape[:-1], value_shape[-1])


def _weighted_sum(weights, value):
    parts = value if isinstance(value, tuple) else (value,)
    if len(parts) == 1:
        return ops.matmul(weights, parts[0])
    start, products = 0, []
    for part in parts[:-1]:
        end = start + ops.shape(part)[2]
        products.append(ops.matmul(weights[..., start:end], part))
        start = end
    # The last part needs no end, which would take several operations in a graph.
    return sum(products, start=ops.matmul(weights[..., start:], parts[-1]))
