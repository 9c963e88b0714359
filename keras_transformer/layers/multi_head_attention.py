"""Multi-head attention, section 3.2.2, with the caches of decoding."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.attention_position import (
    AttentionPosition,
    RelativePosition,
    check_position,
)
from keras_transformer.layers.cached_attention import CachedAttention
from keras_transformer.layers.caches import CompleteCache, FixedCache, GrowingCache, RollingCache
from keras_transformer.layers.checks import check_argument, check_positive_integer, check_rank
from keras_transformer.layers.configured_layer import TracedLayer
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.masks import keys_mask
from keras_transformer.layers.scaled_dot_product_attention import ScaledDotProductAttention
from keras_transformer.layers.sliding_window import attend_in_window


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(TracedLayer, CachedAttention):
    """Attends from `query` to `value` with several heads.

    `MultiHead(Q, K, V) = Concat(head_1, ..., head_h) . W^O`, each head attending with its own
    projections of queries, keys and values. The kernels are matrices `[input_dim, heads * dim]`,
    head-major, so that Glorot initialisation uses the fan-in and fan-out of a whole projection.

    Differs from `keras.layers.MultiHeadAttention`: no biases by default, a fully masked query
    gets exact zeros, `dropout` follows `use_bias` in the arguments, and there is a cache.

    Args:
        num_heads: Number of heads.
        key_dim: Size of the queries and keys of a head.
        value_dim: Size of the values of a head; None for `key_dim`.
        use_bias: Whether the four projections have biases.
        dropout: Dropout rate of the attention weights.
        attention: `AttentionFunction` with a dropout of its own; None for
            `ScaledDotProductAttention(dropout)`.
        sliding_window: As in Keras: query i attends only to the keys j with
            `|i - j| < sliding_window`; None for all keys. Only for self-attention. Time and memory
            grow linearly with the length, and a cache has `sliding_window - 1` positions.
        position: `AttentionPosition`, such as `RotaryPosition`, or None. Only for self-attention.
        flash_attention: As in `ScaledDotProductAttention`. Only for the default `attention`.
        seed: Integer seed of the dropout, or None.
        **kwargs: `kernel_initializer` and `kernel_regularizer` of the four matrices,
            `bias_initializer`, and the arguments of `keras.layers.Layer`.

    Call arguments:
        query: `[batch, query_length, d_model]`.
        value: `[batch, key_length, value_width]`; None to attend to the cache alone.
        key: `[batch, key_length, key_width]`; None for `value`.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend. With
            a cache, `key_length` counts the cached positions as well.
        use_causal_mask: Whether a query may attend only to its own and earlier positions.
        cache: From `make_cache` or an earlier call, or None. The keys and values of `value` are
            appended to the cache.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to apply dropout.

    Returns:
        `[batch, query_length, d_model]`, as wide as the query. With `return_attention_scores=True`,
        a tuple of this tensor and the weights `[batch, num_heads, query_length, key_length]`; with
        a `sliding_window`, the last axis has only the keys of the band (see `attend_in_window`).
        With a cache, a tuple of this tensor and the new cache.

    Raises:
        ValueError: If an argument is wrong, or attention scores are asked for with a cache.

    Example:

    >>> layer = keras_transformer.layers.MultiHeadAttention(num_heads=8, key_dim=64)
    >>> states = keras.random.normal((2, 5, 512))
    >>> ops.shape(layer(states, states, use_causal_mask=True))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.2.2.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        use_bias: bool = False,
        dropout: float = 0.0,
        *,
        attention: AttentionFunction | None = None,
        position: AttentionPosition | None = None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> None:
        seed, flash_attention = kwargs.pop("seed", None), kwargs.pop("flash_attention", None)
        super().__init__(**kwargs)
        check_positive_integer("key_dim", key_dim)
        self._keep(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=key_dim if value_dim is None else value_dim,
            use_bias=use_bias,
            dropout=dropout,
            position=position,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            seed=seed,
        )
        is_function = attention is None or isinstance(attention, AttentionFunction)
        check_argument(is_function, "attention", "an `AttentionFunction` or None", attention)
        if attention is not None and (dropout or flash_attention is not None):
            raise ValueError(
                "`dropout` and `flash_attention` are not allowed beside `attention`, which has its "
                f"own. Received: {dropout=}, {flash_attention=}"
            )
        if isinstance(position, RelativePosition) and not (
            attention is None or isinstance(attention, ScaledDotProductAttention)
        ):
            raise ValueError(
                "`RelativePosition` adds to dot products, and needs a `ScaledDotProductAttention`. "
                f"Received: {attention=}"
            )
        check_position(position)
        self.attention = attention or ScaledDotProductAttention(
            dropout,
            seed=seed,
            flash_attention=flash_attention,
            dtype=self.dtype_policy,
            name="attention",
        )
        self._kept += ("attention",) if attention else ()

    def build(self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        heads = None, self.num_heads, None
        keys, values = (*heads, self.key_dim), (*heads, self.value_dim)
        if not self.attention.built:
            self.attention.build(keys, keys, values)
        if self.position is not None and not self.position.built:
            self.position.build(keys, values)

    def get_config(self) -> dict:
        return {"attention": None, **super().get_config()}

    def call(
        self,
        query: Tensor,
        value: Tensor | None,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        cache: GrowingCache | FixedCache | RollingCache | CompleteCache | None = None,
        return_attention_scores: bool = False,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor | tuple:
        self._check_call(query, value, cache, use_causal_mask, return_attention_scores)
        check_rank("query", query, "[batch, query_length, d_model]")
        check_rank("value", value, "[batch, key_length, value_width]")
        check_rank("attention_mask", attention_mask, "[batch, query_length, key_length]")
        if value is None:
            return self._attend_to_cache(query, attention_mask, cache), cache
        if value is query and key is None:
            queries, keys, values = self._project(query, ("query", "key", "value"))
        else:
            [queries] = self._project(query, ("query",))
            keys, values = self._project_value(value, key)
        query_length, position = ops.shape(query)[1], self.position
        if position is not None:
            positions = ops.arange(query_length, dtype="int32")
            places = positions if cache is None else cache.length + positions
            queries, keys = position.rotate(queries, places), position.rotate(keys, places)
        heads = queries, keys, values
        if cache is not None:
            outputs, cache = self._extend(heads, cache, attention_mask, use_causal_mask)
            return self._merge_heads(outputs), cache
        # Implicit masks, [batch, key_length], do not cover cached keys.
        mask = keys_mask(attention_mask, value_mask, key_mask)
        options = {"return_attention_scores": return_attention_scores}
        if self.sliding_window is not None:
            window = self.sliding_window, use_causal_mask, mask, position
            outputs = attend_in_window(self.attention, *heads, *window, **options)
        else:
            if position is not None:
                options["distances"] = position.between(positions, positions)
            masks = {"attention_mask": mask, "use_causal_mask": use_causal_mask}
            outputs = self.attention(*heads, **masks, **options)
        if return_attention_scores:
            return self._merge_heads(outputs[0]), outputs[1]
        return self._merge_heads(outputs)

    def _check_call(self, query, value, cache, use_causal_mask, return_attention_scores):
        if cache is not None and return_attention_scores:
            raise ValueError(
                "A call returns the attention scores or a cache, not both. Received: "
                f"return_attention_scores={return_attention_scores!r} and a cache"
            )
        if value is None and cache is None:
            raise ValueError("`value` may be None only with a cache. Received: value=None")
        if value is None and use_causal_mask:
            raise ValueError(
                "`use_causal_mask=True` is not supported with `value=None`, because the positions "
                "of the queries in the cache are unknown. "
                "Received: use_causal_mask=True, value=None"
            )
        if self.sliding_window is not None or self.position is not None:
            self._check_self_attention(query, value, cache)

    def _check_self_attention(self, query, value, cache):
        lengths = [None if one is None else one.shape[1] for one in (query, value)]
        kinds = (RollingCache,) if self.sliding_window else (GrowingCache, FixedCache)
        is_own = cache is None or isinstance(cache, kinds)
        if value is None or not is_own or (None not in lengths and len(set(lengths)) > 1):
            raise ValueError(
                "`sliding_window` and `position` are for self-attention, and for caches of "
                f"`make_cache()`. Received: sliding_window={self.sliding_window}, "
                f"position={self.position}, a query and a value of {lengths[0]} and {lengths[1]} "
                f"positions, {type(cache).__name__} as cache"
            )

    def compute_output_shape(
        self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None
    ) -> tuple:
        return query_shape
