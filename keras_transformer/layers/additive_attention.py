"""Additive attention (Bahdanau et al., 2015), which section 3.2.1 compares with dot products."""

import keras
from keras import ops

from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.dtypes import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveAttention(AttentionFunction):
    """Scores keys by a network with one hidden layer: `softmax(v . tanh(query + key)) . value`.

    The projections of `MultiHeadAttention` are the first layer of the network, and each head has
    a vector v. The hidden layer `[batch, heads, query_length, key_length, key_dim]` needs
    `key_dim` times the memory of the scores.

    Args:
        dropout: Dropout rate of the attention weights.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query, key, value, attention_mask, use_causal_mask, distances, return_attention_scores,
            training: As in `AttentionFunction`.

    Returns:
        As in `AttentionFunction`.

    Example:

    >>> from keras_transformer.layers import AdditiveAttention, MultiHeadAttention
    >>> layer = MultiHeadAttention(num_heads=8, key_dim=64, attention=AdditiveAttention())
    >>> states = keras.random.normal((2, 5, 512))
    >>> ops.shape(layer(states, states))
    (2, 5, 512)

    Reference: Bahdanau et al. (2015); Vaswani et al. (2017), section 3.2.1.
    """

    def build(self, query_shape: tuple, key_shape: tuple, value_shape: tuple) -> None:
        super().build(query_shape, key_shape, value_shape)
        _, num_heads, *_, key_dim = query_shape
        self.score_kernel = self.add_weight(
            name="score_kernel", shape=(num_heads, key_dim), initializer="glorot_uniform"
        )

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3))
        middle = (1,) * (len(hidden.shape) - 3)
        kernel = ops.reshape(self.score_kernel, (-1, *middle, query.shape[-1]))
        return ops.sum(hidden * ops.cast(kernel, hidden.dtype), axis=-1)
