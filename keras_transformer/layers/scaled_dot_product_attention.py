"""Scaled dot-product attention, equation (1)."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.attention_position import DistanceVectors
from keras_transformer.layers.checks import check_boolean, check_positive_number
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.flash_attention import flash_attention


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledDotProductAttention(AttentionFunction):
    """Dot-product attention: `softmax(query . key^T / sqrt(key_dim)) . value`.

    Args:
        dropout: Dropout rate of the attention weights.
        scale: Factor of the scores; None for `1 / sqrt(key_dim)`, 1 for the plain dot product.
        seed: Integer seed of the dropout, or None.
        flash_attention: Whether to avoid the matrix of all scores. True uses the fused kernel of
            torch, or of JAX on a GPU; elsewhere, and for long inputs with a mask, it uses blocks,
            in memory that grows linearly with the length. False computes all scores. None follows
            `keras.config`; by default it acts like True, but uses blocks only for known lengths
            from 4,096 on. Dropout and `distances` need all scores, and True refuses them.

    Call arguments:
        query, key, value, attention_mask, use_causal_mask, distances, return_attention_scores,
            training: As in `AttentionFunction`.

    Returns:
        As in `AttentionFunction`.

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
        flash_attention: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout, seed, **kwargs)
        if scale is not None:
            check_positive_number("scale", scale)
        if flash_attention is not None:
            check_boolean("flash_attention", flash_attention)
        self.scale = scale
        self.flash_attention = flash_attention
        if flash_attention and dropout:
            rule = "`flash_attention=True` is not supported with dropout of the attention weights"
            raise ValueError(f"{rule}. Received: {dropout=}")

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "scale": self.scale,
            "flash_attention": self.flash_attention,
        }

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
        # Scaling the queries is cheaper than scaling the scores, with the same result.
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scaled = ops.multiply(query, scale)
        masks = attention_mask, use_causal_mask
        is_plain = distances is None and not return_attention_scores and not self.dropout
        if self.flash_attention and distances is not None:
            rule = "`flash_attention=True` is not supported with relative positions"
            raise ValueError(f"{rule}. Received: distances={distances}")
        # The parts of a cache, and the blocks of a window, are too short to gain anything.
        is_whole = not isinstance(key, tuple) and len(query.shape) == 4
        if is_plain and is_whole:
            attend = flash_attention(self.flash_attention, query, key, value, attention_mask)
            if attend is not None:
                return attend(scaled, key, value, *masks)
        return super().call(
            scaled, key, value, *masks, distances, return_attention_scores, training
        )

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return ops.matmul(query, ops.swapaxes(key, -1, -2))
