"""Multi-head attention, section 3.2.2, with the caches of decoding."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention_function import AttentionFunction
from keras_transformer.layers.caches import CompleteCache, FixedCache, GrowingCache, RollingCache
from keras_transformer.layers.checks import check_built, check_positive_integer, check_rank
from keras_transformer.layers.configured_layer import TracedLayer
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.head_projections import HeadProjections
from keras_transformer.layers.kernels.projection import first_number
from keras_transformer.layers.kernels.shapes import reshape
from keras_transformer.layers.masks import causal_mask, combine_masks, keys_mask
from keras_transformer.layers.scaled_dot_product_attention import ScaledDotProductAttention
from keras_transformer.layers.sliding_window import attend_in_window


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(TracedLayer, HeadProjections):
    """Attends from `query` to `value` with several heads.

    `MultiHead(Q, K, V) = Concat(head_1, ..., head_h) . W^O`, each head attending with its own
    projections of queries, keys and values. The kernels are matrices `[input_dim, heads * dim]`,
    head-major, so that Glorot initialisation sees the fan-in and fan-out of the paper's maps.

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
            `|i - j| < sliding_window`, in self-attention; None for all keys. Time and memory
            grow linearly with the length, and a cache has `sliding_window - 1` positions.
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
        training: Whether to drop.

    Returns:
        `[batch, query_length, d_model]`, as wide as the query; with
        `return_attention_scores=True` a tuple of that and the weights
        `[batch, num_heads, query_length, key_length]`, or with `sliding_window` those of the
        band (`attend_in_window`); with a cache a tuple of that and the new cache.

    Raises:
        ValueError: If both a cache and attention scores are asked for, or an argument is not
            allowed.

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
        sliding_window: int | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer("key_dim", key_dim)
        self._keep(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=key_dim if value_dim is None else value_dim,
            use_bias=use_bias,
            dropout=dropout,
            sliding_window=sliding_window,
            seed=seed,
        )
        if attention is not None and (dropout or not isinstance(attention, AttentionFunction)):
            raise ValueError(
                "`attention` must be an `AttentionFunction` with a dropout of its own, or None. "
                f"Received: attention={attention!r}, dropout={dropout!r}"
            )
        self.attention = attention or ScaledDotProductAttention(
            dropout, seed=seed, dtype=self.dtype_policy, name="attention"
        )
        self._kept += ("attention",) if attention else ()

    def build(self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        if not self.attention.built:
            heads = None, self.num_heads, None
            keys, values = (*heads, self.key_dim), (*heads, self.value_dim)
            self.attention.build(keys, keys, values)

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
        heads, query_length = (queries, keys, values), ops.shape(query)[1]
        if cache is not None:
            outputs, cache = self._extend(heads, cache, attention_mask, use_causal_mask)
            return self._merge_heads(outputs), cache
        # Implicit masks, [batch, key_length], do not cover cached keys.
        mask = keys_mask(attention_mask, value_mask, key_mask)
        options = {"return_attention_scores": return_attention_scores}
        if self.sliding_window is not None:
            window = self.sliding_window, use_causal_mask, mask
            outputs = attend_in_window(self.attention, *heads, *window, **options)
        else:
            causal = causal_mask(query_length, ops.shape(keys)[2], 0) if use_causal_mask else None
            mask = combine_masks(causal, mask)
            outputs = self.attention(*heads, attention_mask=mask, **options)
        if return_attention_scores:
            return self._merge_heads(outputs[0]), outputs[1]
        return self._merge_heads(outputs)

    def _extend(self, heads, cache, mask, is_causal):
        """Returns the outputs at the positions that follow a cache, and the new cache."""
        queries, keys, values = heads
        cache = cache.extend(keys, values)
        if mask is not None and self.sliding_window is not None:
            mask = cache.last_columns(mask)
        mask = combine_masks(mask, cache.mask(ops.shape(queries)[2], is_causal))
        outputs = self.attention(queries, cache.keys, cache.values, attention_mask=mask)
        if self.sliding_window is not None:
            cache = cache.last(self.sliding_window - 1)
        return outputs, cache

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
                "With value=None queries have no positions among the keys of the cache. "
                "Received: use_causal_mask=True, value=None"
            )
        if self.sliding_window is not None:
            lengths = [None if one is None else one.shape[1] for one in (query, value)]
            is_rolling = cache is None or isinstance(cache, RollingCache)
            if value is None or not is_rolling or (None not in lengths and len(set(lengths)) > 1):
                raise ValueError(
                    "`sliding_window` is for self-attention, and for caches of `make_cache()`. "
                    f"Received: sliding_window={self.sliding_window}, a query and a value of "
                    f"{lengths[0]} and {lengths[1]} positions, {type(cache).__name__} as cache"
                )

    def make_cache(
        self,
        value: Tensor | None = None,
        key: Tensor | None = None,
        batch_size: Any = None,
        max_length: Any = None,
    ) -> GrowingCache | FixedCache | RollingCache | CompleteCache:
        """Returns a cache for `call`: keys and values computed once, to be attended to many times.

        Args:
            value: `[batch, key_length, value_width]`, whose keys and values fill the cache (for
                cross-attention); None for an empty cache (for self-attention).
            key: As in `call`.
            batch_size: Number of rows of an empty cache.
            max_length: Number of positions of an empty cache of fixed size, for backends that
                compile fixed shapes; None for one that grows with each call.

        Returns:
            A named tuple of `keys` and `values`: complete, of fixed size, growing, or rolling
            with `sliding_window`.
        """
        check_built(self)
        if value is not None:
            heads = self._project_value(value, key)
            # On JAX and torch Keras computes float64 in float32.
            return CompleteCache(*(ops.cast(one, self.compute_dtype) for one in heads))
        if self.sliding_window is not None:
            length = self.sliding_window - 1
        elif max_length is not None:
            length = max_length
        else:
            # 0, computed from a weight so that no graph folds it: the cache can grow in a loop.
            number = first_number(self.query_kernel)
            length = ops.cast(number < number, "int32")
        leading = (batch_size, self.num_heads, length)
        keys = ops.zeros((*leading, self.key_dim), dtype=self.compute_dtype)
        values = ops.zeros((*leading, self.value_dim), dtype=self.compute_dtype)
        if self.sliding_window is None and max_length is None:
            return GrowingCache((keys, keys), (values, values))
        kind = FixedCache if self.sliding_window is None else RollingCache
        return kind(keys, values, ops.zeros((), dtype="int32"))

    def _attend_to_cache(self, query, attention_mask, cache):
        """Attends to the cache alone; each of its rows may serve several rows of the query.

        Beams of one sentence share its keys and values: they are folded into the query axis.
        A mask then has to be the same for all queries, `[batch or 1, 1, key_length]`.
        """
        query_shape = ops.shape(query)
        keys = cache.keys
        cache_batch = ops.shape(keys[0] if isinstance(keys, tuple) else keys)[0]
        folded = reshape(query, (cache_batch, -1, query.shape[-1]))
        [queries] = self._project(folded, ("query",))
        outputs = self.attention(queries, keys, cache.values, attention_mask=attention_mask)
        return reshape(self._merge_heads(outputs), query_shape)

    def compute_output_shape(
        self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None
    ) -> tuple:
        return query_shape
