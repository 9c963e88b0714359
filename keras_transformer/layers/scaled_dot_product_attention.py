"""Scaled dot-product attention, equation (1)."""

import keras
from keras import ops

from keras_transformer.layers.checks import check_rate, check_seed
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.dtypes import at_least_float32

# Added to masked scores in float32 or float64: exp() of it is exactly 0, and it cannot overflow.
_MASKED_SCORE = -1e30


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledDotProductAttention(keras.layers.Layer):
    """Attends: `softmax(query . key^T / sqrt(key_dim)) . value`.

    The softmax is computed in at least float32. A query that may attend to no key gets exact
    zeros.

    Args:
        dropout: Dropout rate of the attention weights.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query: `[batch, heads, query_length, key_dim]`.
        key: `[batch, heads, key_length, key_dim]`; or a tuple of such tensors, whose positions
            count one behind the other, as a cache in several parts has them.
        value: `[batch, heads, key_length, value_dim]`, or a tuple of as many.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend.
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

    def __init__(self, dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        check_rate("dropout", dropout)
        check_seed(seed)
        self.dropout = dropout
        self.seed = seed
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    def build(self, query_shape, key_shape, value_shape):
        self.built = True

    def call(
        self,
        query,
        key,
        value,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        # Scaling the queries is cheaper than scaling the scores, and the same.
        query = ops.multiply(query, query.shape[-1] ** -0.5)
        scores = _scores(query, key)  # [batch, heads, query, key]
        scores = ops.cast(scores, at_least_float32(self.compute_dtype))
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
        weights = self.dropout_layer(weights, training=training)
        outputs = _weighted_sum(weights, value)  # [batch, heads, query, value_dim]
        if row_is_alive is not None:
            outputs = ops.multiply(outputs, ops.cast(row_is_alive, outputs.dtype))
        return (outputs, weights) if return_attention_scores else outputs

    def compute_output_spec(self, *args, **kwargs):
        # Traced, since the form of the output depends on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, query_shape, key_shape, value_shape):
        return (*query_shape[:-1], value_shape[-1])

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout, "seed": self.seed}


def _scores(query, key):
    if not isinstance(key, tuple):
        return ops.matmul(query, ops.swapaxes(key, -1, -2))
    return ops.concatenate([_scores(query, part) for part in key], axis=-1)


def _weighted_sum(weights, value):
    if not isinstance(value, tuple):
        return ops.matmul(weights, value)
    start, total = 0, None
    for part in value:
        end = start + ops.shape(part)[2]
        product = ops.matmul(weights[..., start:end], part)
        total = product if total is None else total + product
        start = end
    return total
