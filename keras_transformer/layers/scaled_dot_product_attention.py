"""Scaled dot-product attention, equation (1)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.attention_position import DistanceVectors
from keras_transformer.layers.checks import check_boolean, check_positive_number
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.flash_attention import attend_by_blocks, attend_by_kernel

# Attention by blocks is the default from this length on.
_LONG = 4096


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
            attend = choose_kernel(self.flash_attention, query, key, value, attention_mask)
            if attend is not None:
                return attend(scaled, key, value, *masks)
        return super().call(
            scaled, key, value, *masks, distances, return_attention_scores, training
        )

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return ops.matmul(query, ops.swapaxes(key, -1, -2))


def choose_kernel(
    setting: bool | None, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None
) -> Callable | None:
    """Returns `attend_by_kernel` or `attend_by_blocks`, or None to compute all scores.

    Args:
        setting: `flash_attention` of a layer. With None, blocks are taken for long inputs only.
        query, key, value, attention_mask: As in the returned function.
    """
    if setting is None:
        setting = keras.config.is_flash_attention_enabled()  # None if it was not disabled.
    if setting is False:
        return None
    lengths = query.shape[2], key.shape[2]
    # While JAX traces a functional model, an unknown length is an expression.
    is_known = all(isinstance(length, int) for length in lengths)
    is_long = is_known and lengths[0] * lengths[1] >= _LONG**2
    # A kernel needs the full mask, `[queries, keys]`, which is too large for long inputs.
    if _has_kernel(key, value) and (attention_mask is None or not is_long):
        return attend_by_kernel
    return attend_by_blocks if setting or is_long else None


def _has_kernel(key, value):
    if keras.backend.backend() == "jax":
        return key.shape[-1] == value.shape[-1] and bool(_gpus())
    return keras.backend.backend() == "torch"


def _gpus():
    try:
        return keras.distribution.list_devices("gpu")
    except RuntimeError:  # JAX raises it if there is no GPU
        return []
