"""Multi-head attention, section 3.2.2, with the caches of decoding."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.layers import caches
from keras_transformer.layers.attention_function import (
    AttentionFunction,
    ScaledDotProductAttention,
    check_attention,
)
from keras_transformer.layers.blockwise_attention import attend_in_window
from keras_transformer.layers.caches import Cache
from keras_transformer.layers.composite_layer import (
    CompositeLayer,
    built_dense,
    check_arguments,
    dense_config,
    freeze_given,
    load_version_1,
    quantize_parts,
    unbuilt_config,
)
from keras_transformer.layers.positions import (
    AttentionPosition,
    check_position,
)
from keras_transformer.layers.tensors import Tensor, check_shape, combine_masks, keys_mask, reshape

_MASK_SHAPE = "[batch or 1, query_length or 1, key_length]"


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(CompositeLayer):
    """Attends from `query` to `value` with several heads.

    Differs from `keras.layers.MultiHeadAttention`: no biases by default, a fully masked query gets
    exact zeros, and there is a cache. The projections are `keras.layers.Dense` layers with kernels
    `[input_dim, heads * dim]`, so that Glorot initialization sees a whole projection.

    Args:
        num_heads: Number of heads.
        key_dim: Size of the queries and keys of a head.
        value_dim: Size of the values of a head; None for `key_dim`.
        use_bias: Whether the four projections have biases.
        dropout: Dropout rate of the attention weights.
        attention: `AttentionFunction`, which has its own dropout; None for
            `ScaledDotProductAttention(dropout)`.
        sliding_window: As in Keras: query i of self-attention attends only to the keys j with
            `|i - j| < sliding_window`, in linear time and memory; None for all keys.
        position: `AttentionPosition` for self-attention, such as `RotaryPosition`, or None.
        flash_attention: Whether the default `attention` avoids the matrix of all scores, as in
            `ScaledDotProductAttention`; None follows `keras.config`.
        kernel_initializer, bias_initializer, kernel_regularizer: As in `keras.layers.Dense`.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query: `[batch, query_length, d_model]`.
        value: `[batch, key_length, value_width]`.
        key: `[batch, key_length, key_width]`; None for `value`.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend. With
            a cache, `key_length` counts the cached positions as well.
        use_causal_mask: Whether a query may attend only to its own and earlier positions.
        cache: From `make_cache` or an earlier call, to which the keys and values of `value` are
            appended; or None. `attend_to_cache` appends nothing.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to apply dropout.

    Returns:
        `[batch, query_length, d_model]`, as wide as the query. With `return_attention_scores=True`,
        a tuple of this tensor and the weights `[batch, num_heads, query_length, key_length]`; with
        a `sliding_window`, the last axis has only the keys of the band (see `attend_in_window`).
        With a cache, a tuple of this tensor and the new cache, and no weights.

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
        flash_attention: bool | None = None,
        kernel_initializer: str | Callable = "glorot_uniform",
        bias_initializer: str | Callable = "zeros",
        kernel_regularizer: str | Callable | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_position(position)
        check_attention(attention, dropout, flash_attention, position)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        self.use_bias = use_bias
        self.dropout = dropout
        self._is_attention_given = attention is not None
        self.attention = attention or ScaledDotProductAttention(
            dropout,
            seed=seed,
            flash_attention=flash_attention,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.position = position
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed = seed
        check_arguments(self, MultiHeadAttention)
        freeze_given(self, self.attention, position)

    def build(self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None) -> None:
        d_model, value_width = query_shape[-1], value_shape[-1]
        key_width = value_width if key_shape is None else key_shape[-1]
        key_units, value_units = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        self.query_dense = built_dense(self, "query", d_model, key_units)
        self.key_dense = built_dense(self, "key", key_width, key_units)
        self.value_dense = built_dense(self, "value", value_width, value_units)
        self.output_dense = built_dense(self, "output", value_units, d_model)
        keys_shape = (None, self.num_heads, None, self.key_dim)
        values_shape = (None, self.num_heads, None, self.value_dim)
        if not self.attention.built:
            self.attention.build(keys_shape, keys_shape, values_shape)
        if self.position is not None and not self.position.built:
            self.position.build(keys_shape, values_shape)
        quantize_parts(self, self.quantized_parts)

    def _check_inputs(
        self, query, value=None, key=None, attention_mask=None, *others, cache=None, **options
    ):
        check_shape("query", query, "[batch, query_length, d_model]")
        batch, length = query.shape[:2]
        check_shape("value", value, "[batch, key_length, value_width]", batch)
        if value is None:
            rule = "`value` must be a tensor; `attend_to_cache` needs none"
            raise ValueError(f"{rule}. Received: value=None")
        check_shape("key", key, "[batch, key_length, key_width]", batch, value.shape[1])
        # The second of `others` is `cache`, given by position.
        keys = None if cache is not None or len(others) > 1 else value.shape[1]
        check_shape("attention_mask", attention_mask, _MASK_SHAPE, batch, length, keys)

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        cache: Cache | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor | tuple:
        self._check_call(query, value, cache, return_attention_scores)
        batch_size, query_length = ops.shape(query)[:2]
        flat_query = self._flatten(query)
        queries = self._split_heads(self.query_dense(flat_query), batch_size, query_length)
        keys, values = self._project_value(value, key, flat_query if value is query else None)
        if self.position is not None:
            start = 0 if cache is None else cache.length  # type: ignore[union-attr]  # checked
            positions = start + ops.arange(query_length, dtype="int32")
            queries = self.position.rotate(queries, positions)
            keys = self.position.rotate(keys, positions)
        states = queries, keys, values
        if cache is not None:
            # A map with a policy of its own may have another dtype than the cache.
            keys, values = (ops.cast(x, self.compute_dtype) for x in (keys, values))
            cache = cache.extend(keys, values)
            outputs = self._attend_to_extended(queries, cache, attention_mask, use_causal_mask)
            if self.sliding_window is not None:
                cache = cache.last(self.sliding_window - 1)  # type: ignore[union-attr]  # checked
            return self._merge_heads(outputs, batch_size, query_length), cache
        options = {
            # Implicit masks, [batch, key_length], do not cover cached keys.
            "attention_mask": keys_mask(attention_mask, value_mask, key_mask),
            "return_attention_scores": return_attention_scores,
            "training": training,
        }
        if self.sliding_window is not None:
            window = self.sliding_window, use_causal_mask, self.position
            outputs = attend_in_window(self.attention, *states, *window, **options)
        else:
            distances = None
            if self.position is not None:
                distances = self.position.between(positions, positions)
            options |= {"use_causal_mask": use_causal_mask, "distances": distances}
            outputs = self.attention(*states, **options)
        outputs, scores = outputs if return_attention_scores else (outputs, None)
        outputs = self._merge_heads(outputs, batch_size, query_length)
        return (outputs, scores) if return_attention_scores else outputs

    def attend_to_cache(
        self, query: Tensor, cache: Cache, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Returns the outputs of queries that attend to the keys of a cache alone.

        An entry of the cache may serve several entries of the query, `width` for each: so the beams
        of a sentence share its keys and values. The mask must then be the same for all queries.

        Args:
            query: `[batch * width, query_length, d_model]`.
            cache: From `make_cache(value)`, of `batch` entries.
            attention_mask: bool `[batch or 1, query_length or 1, key_length]`; None for all keys.
        """
        if self.sliding_window is not None or self.position is not None:
            raise ValueError(
                "`sliding_window` and `position` are for self-attention, which extends its cache. "
                f"Received: sliding_window={self.sliding_window}, position={self.position}"
            )
        keys = cache.keys
        batch = ops.shape(keys[0] if isinstance(keys, tuple) else keys)[0]
        # The number of queries is inferred, except from no entries, where torch cannot infer it.
        is_empty = isinstance(batch, int) and batch == 0
        # [batch * width, query_length, d_model] -> [batch, heads, width * query_length, key_dim]
        flat_queries = self.query_dense(self._flatten(query))
        queries = self._split_heads(flat_queries, batch, 0 if is_empty else -1)
        outputs = self.attention(queries, keys, cache.values, attention_mask=attention_mask)
        return self._merge_heads(outputs, *ops.shape(query)[:2])

    def _flatten(self, inputs):
        """Returns `[batch, length, width]` as `[batch * length, width]`, in the compute dtype."""
        # On TensorFlow, a product of two matrices is several times faster than one of three axes.
        # Keras casts only floats, and only in `__call__`; `make_cache` is not called through it.
        return reshape(ops.cast(inputs, self.compute_dtype), (-1, inputs.shape[-1]))

    def _project_value(self, value, key, flat_value=None):
        """Returns keys and values, `[batch, num_heads, key_length, dim]`."""
        batch_size, length = ops.shape(value)[:2]
        flat_value = self._flatten(value) if flat_value is None else flat_value
        flat_key = flat_value if key is None or key is value else self._flatten(key)
        keys = self._split_heads(self.key_dense(flat_key), batch_size, length)
        return keys, self._split_heads(self.value_dense(flat_value), batch_size, length)

    def _split_heads(self, flat, batch_size, length):
        """Returns `[batch * length, heads * dim]` as `[batch, heads, length, dim]`."""
        dim = flat.shape[-1] // self.num_heads
        # A step of decoding has nothing to transpose. An unknown length, a tensor, is not compared.
        if isinstance(length, int) and length == 1:
            return reshape(flat, (batch_size, self.num_heads, 1, dim))
        # [batch * length, heads * dim] -> [batch, length, heads, dim]
        heads = reshape(flat, (batch_size, length, self.num_heads, dim))
        return ops.transpose(heads, (0, 2, 1, 3))

    def _merge_heads(self, heads, batch_size, length):
        """Merges and projects `[batch, heads, length, value_dim]` to `[batch, length, d_model]`."""
        heads = ops.cast(heads, self.compute_dtype)  # `attention` may have another dtype.
        if heads.shape[2] != 1:
            heads = ops.transpose(heads, (0, 2, 1, 3))
        # [batch, length, heads, value_dim] -> [batch * length, heads * value_dim]
        flat = self.output_dense(reshape(heads, (-1, self.num_heads * self.value_dim)))
        return reshape(flat, (batch_size, length, flat.shape[-1]))

    def make_cache(
        self,
        value: Tensor | None = None,
        key: Tensor | None = None,
        batch_size: Any = None,
        max_length: Any = None,
    ) -> Cache:
        """Returns a cache for `call`, a named tuple with `keys` and `values`.

        Args:
            value, key: As in `call`; their keys and values fill the cache (for cross-attention).
                None for an empty cache (for self-attention).
            batch_size: Number of entries of an empty cache.
            max_length: Number of positions of an empty cache of fixed size, for backends that
                compile fixed shapes; None for one that grows with each call.
        """
        caches.check_built(self)
        if value is None and batch_size is None:
            rule = "An empty cache needs `batch_size`, the number of its entries"
            raise ValueError(f"{rule}. Received: batch_size=None")
        if value is not None:
            # On JAX and torch Keras computes float64 in float32.
            states = (ops.cast(x, self.compute_dtype) for x in self._project_value(value, key))
            return caches.CompleteCache(*states)
        return caches.empty_cache(
            leading=(batch_size, self.num_heads),
            dims=(self.key_dim, self.value_dim),
            dtype=self.compute_dtype,
            max_length=max_length,
            window=self.sliding_window,
            weight=self.query_dense.kernel,
        )

    def _attend_to_extended(self, queries, cache, mask, is_causal):
        """Returns the outputs of queries whose own keys are the last ones in the cache."""
        num_queries, keys, values = ops.shape(queries)[2], cache.keys, cache.values
        is_step = isinstance(num_queries, int) and num_queries == 1
        if isinstance(keys, tuple) and not is_step:
            # Attention to a whole prompt need not store all scores.
            keys, values = (ops.concatenate(parts, axis=2) for parts in (keys, values))
        if self.sliding_window is None:
            parts = keys if isinstance(keys, tuple) else (keys,)
            sizes = queries.shape[0], queries.shape[2], sum(ops.shape(part)[2] for part in parts)
            check_shape("attention_mask", mask, _MASK_SHAPE, *sizes)
        elif mask is not None:
            mask = cache.last_columns(mask)
        mask = combine_masks(mask, cache.mask(num_queries, is_causal))
        distances = None
        if self.position is not None:
            distances = self.position.between(*cache.positions(num_queries))
        states = queries, keys, values
        return self.attention(*states, attention_mask=mask, distances=distances)

    def _check_call(self, query, value, cache, return_attention_scores):
        if cache is not None and return_attention_scores:
            rule = "A call returns the attention scores or a cache, not both"
            raise ValueError(f"{rule}. Received: return_attention_scores=True and a cache")
        if self.sliding_window is None and self.position is None:
            return
        lengths = [query.shape[1], value.shape[1]]
        without_window = caches.GrowingCache | caches.FixedCache
        allowed = caches.RollingCache if self.sliding_window else without_window
        is_allowed = cache is None or isinstance(cache, allowed)
        if not is_allowed or (None not in lengths and len(set(lengths)) > 1):
            raise ValueError(
                "`sliding_window` and `position` are for self-attention, and for caches of "
                f"`make_cache()`. Received: sliding_window={self.sliding_window}, "
                f"position={self.position}, a query and a value of {lengths[0]} and {lengths[1]} "
                f"positions, {type(cache).__name__} as cache"
            )

    # Optimizers and SavedModels store values in the order of version 1.0: linear maps first.
    @property
    def weights(self) -> list:
        return sorted(super().weights, key=_is_not_projection)

    @property
    def variables(self) -> list:
        return sorted(super().variables, key=_is_not_projection)

    def load_own_variables(self, store: Mapping) -> None:
        maps = [self.query_dense, self.key_dense, self.value_dense, self.output_dense]
        if not load_version_1(store, maps, [weight for dense in maps for weight in dense.weights]):
            super().load_own_variables(store)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "use_bias": self.use_bias,
            "dropout": self.dropout,
            "attention": unbuilt_config(self.attention) if self._is_attention_given else None,
            "position": unbuilt_config(self.position),
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "seed": self.seed,
            **dense_config(self),
        }


def _is_not_projection(variable):
    return variable.path.split("/")[-2] not in ("query", "key", "value", "output")
