"""Attention in decoding: caches of keys and values, section 3.1."""

from typing import Any

from keras import ops

from keras_transformer.layers.caches import CompleteCache, FixedCache, GrowingCache, RollingCache
from keras_transformer.layers.checks import check_built
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.head_projections import HeadProjections
from keras_transformer.layers.kernels.projection import first_number
from keras_transformer.layers.masks import combine_masks


class CachedAttention(HeadProjections):
    """Base of `MultiHeadAttention`: attention with a cache."""

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
            A named tuple with `keys` and `values`: a `CompleteCache` of `value`, or an empty
            `RollingCache` with `sliding_window`, `FixedCache` with `max_length`, or `GrowingCache`.
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
            # 0, computed from a weight: a constant is a static size, which cannot grow in a loop.
            number = first_number(self.query_kernel)
            length = ops.cast(number < number, "int32")
        leading = (batch_size, self.num_heads, length)
        keys = ops.zeros((*leading, self.key_dim), dtype=self.compute_dtype)
        values = ops.zeros((*leading, self.value_dim), dtype=self.compute_dtype)
        if self.sliding_window is None and max_length is None:
            return GrowingCache((keys, keys), (values, values))
        kind = FixedCache if self.sliding_window is None else RollingCache
        return kind(keys, values, ops.zeros((), dtype="int32"))

    def _extend(self, heads, cache, mask, is_causal):
        """Returns the outputs at the positions that follow a cache, and the new cache."""
        queries, keys, values = heads
        num_queries = ops.shape(queries)[2]
        cache = cache.extend(keys, values)
        if mask is not None and self.sliding_window is not None:
            mask = cache.last_columns(mask)
        options = {"attention_mask": combine_masks(mask, cache.mask(num_queries, is_causal))}
        if self.position is not None:
            options["distances"] = self.position.between(*cache.places(num_queries))
        outputs = self.attention(queries, cache.keys, cache.values, **options)
        if self.sliding_window is not None:
            cache = cache.last(self.sliding_window - 1)
        return outputs, cache

    def _attend_to_cache(self, query, attention_mask, cache):
        """Attends to the cache alone; one row of the cache may serve several rows of the query.

        The beams of a sentence share its keys and values, so they are folded into the query axis.
        The mask must then be the same for all queries, `[batch or 1, 1, key_length]`.
        """
        keys = cache.keys
        cache_batch = ops.shape(keys[0] if isinstance(keys, tuple) else keys)[0]
        # The number of queries is inferred, except from no rows, where torch cannot infer it.
        is_empty = isinstance(cache_batch, int) and cache_batch == 0
        [queries] = self._project(query, ("query",), (cache_batch, 0 if is_empty else -1))
        outputs = self.attention(queries, keys, cache.values, attention_mask=attention_mask)
        return self._merge_heads(outputs, ops.shape(query)[:2])
