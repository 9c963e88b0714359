"""Caches of decoding: keys and values that attention computes once and reads at every step."""

from typing import Any, NamedTuple, Self

import keras
from keras import ops

from keras_transformer.layers.tensors import Tensor, causal_mask, reshape


class GrowingCache(NamedTuple):
    """Keys and values that grow with each call, in one or two consecutive parts.

    A step copies only the last part, which has the recent positions; `merged` empties it.
    """

    keys: tuple  # one or two tensors [batch, heads, length, key_dim]
    values: tuple  # as many tensors [batch, heads, length, value_dim]

    @property
    def length(self) -> Any:
        """Number of positions, an int or an int32 scalar."""
        return sum(ops.shape(keys)[2] for keys in self.keys)

    def extend(self, keys: Tensor, values: Tensor) -> "GrowingCache":
        """Returns the cache with the keys and values of new positions at its end."""
        last_keys = ops.concatenate([self.keys[-1], keys], axis=2)
        last_values = ops.concatenate([self.values[-1], values], axis=2)
        return GrowingCache((*self.keys[:-1], last_keys), (*self.values[:-1], last_values))

    def mask(self, num_queries: Any, is_causal: bool) -> Tensor | None:
        """Returns the keys that the last `num_queries` positions may attend to; None for all."""
        # Nothing follows a single query.
        if not is_causal or (isinstance(num_queries, int) and num_queries == 1):
            return None
        return causal_mask(num_queries, self.length, self.length - num_queries)

    def positions(self, num_queries: Any) -> tuple[Tensor, Tensor]:
        """Returns the positions of the last `num_queries` queries and of all keys."""
        keys = ops.arange(self.length, dtype="int32")
        return keys[self.length - num_queries :], keys

    def merged(self) -> "GrowingCache":
        """Returns the cache with all positions in its first part."""
        if len(self.keys) == 1:
            return self

        def merge(parts):
            return ops.concatenate(parts, axis=2), parts[1][:, :, :0]

        return GrowingCache(merge(self.keys), merge(self.values))


class FixedCache(NamedTuple):
    """Keys and values of a fixed number of positions, for backends that compile fixed shapes."""

    keys: Tensor  # [batch, heads, max_length, key_dim]; zeros from `length` on
    values: Tensor  # [batch, heads, max_length, value_dim]
    length: Tensor  # int32 [], number of positions written

    def extend(self, keys: Tensor, values: Tensor) -> "FixedCache":
        """Returns the cache with the keys and values of new positions after those written."""
        new_length, max_length = ops.shape(keys)[2], ops.shape(self.keys)[2]
        # is_target[p, i] = 1 where new position i goes to p. Unwritten positions are 0, so a sum
        # writes them: cheaper than a scatter on every backend.
        targets = self.length + ops.arange(new_length, dtype="int32")
        positions = ops.expand_dims(ops.arange(max_length, dtype="int32"), 1)
        is_target = ops.cast(ops.equal(positions, targets), keys.dtype)
        keys, values = (ops.matmul(is_target, states) for states in (keys, values))
        return FixedCache(self.keys + keys, self.values + values, self.length + new_length)

    def mask(self, num_queries: Any, is_causal: bool) -> Tensor:
        """Returns the keys that the last `num_queries` positions may attend to."""
        max_length = ops.shape(self.keys)[2]
        if is_causal:  # This hides the unwritten positions as well.
            return causal_mask(num_queries, max_length, self.length - num_queries)
        return reshape(ops.arange(max_length, dtype="int32") < self.length, (1, 1, -1))

    def positions(self, num_queries: Any) -> tuple[Tensor, Tensor]:
        """Returns the positions of the last `num_queries` queries and of all keys."""
        queries = self.length - num_queries + ops.arange(num_queries, dtype="int32")
        return queries, ops.arange(ops.shape(self.keys)[2], dtype="int32")


class RollingCache(NamedTuple):
    """Keys and values of the last positions, as many as a sliding window reaches back."""

    keys: Tensor  # [batch, heads, window - 1, key_dim]; zeros before the first position
    values: Tensor  # [batch, heads, window - 1, value_dim]
    length: Tensor  # int32 [], number of positions seen

    def extend(self, keys: Tensor, values: Tensor) -> "RollingCache":
        """Returns the cache with the keys and values of new positions at its end."""
        length = self.length + ops.shape(keys)[2]
        keys = ops.concatenate([self.keys, keys], axis=2)
        return RollingCache(keys, ops.concatenate([self.values, values], axis=2), length)

    def mask(self, num_queries: Any, is_causal: bool) -> Tensor:
        """Returns the keys that the last `num_queries` positions may attend to, after `extend`."""
        (queries, keys), size = self.positions(num_queries), ops.shape(self.keys)[2]
        reach, distance = size - num_queries, keys - ops.expand_dims(queries, 1)
        in_window = ops.logical_and(distance >= -reach, distance <= (0 if is_causal else reach))
        return ops.expand_dims(ops.logical_and(in_window, keys >= size - self.length), 0)

    def positions(self, num_queries: Any) -> tuple[Tensor, Tensor]:
        """Returns the same positions as `GrowingCache`, counted from the first in this cache."""
        size = ops.shape(self.keys)[2]
        queries = size - num_queries + ops.arange(num_queries, dtype="int32")
        return queries, ops.arange(size, dtype="int32")

    def last_columns(self, mask: Tensor) -> Tensor:
        """Returns the columns of a mask of all positions that are here, padded with False."""
        (batch, queries, _), size = ops.shape(mask), ops.shape(self.keys)[2]
        padded = ops.pad(mask, [[0, 0], [0, 0], [size, 0]])
        return ops.slice(padded, (0, 0, self.length), (batch, queries, size))

    def last(self, number: Any) -> Self:
        """Returns the cache of the last positions alone."""
        start = ops.shape(self.keys)[2] - number
        return self._replace(keys=self.keys[:, :, start:], values=self.values[:, :, start:])


class CompleteCache(NamedTuple):
    """Keys and values that are complete, such as the encoder's."""

    keys: Tensor  # [batch, heads, length, key_dim]
    values: Tensor  # [batch, heads, length, value_dim]

    def extend(self, keys: Tensor, values: Tensor) -> GrowingCache:
        """Returns a cache that grows, with new positions after these."""
        return GrowingCache((self.keys, keys), (self.values, values))


Cache = GrowingCache | FixedCache | RollingCache | CompleteCache


def empty_cache(
    leading: tuple, dims: tuple, dtype: str, max_length: Any, window: int | None, weight: Any
) -> GrowingCache | FixedCache | RollingCache:
    """Returns an empty cache of `leading` sizes, with the `dims` of a key and of a value.

    It is a `RollingCache` with a window, a `FixedCache` with a `max_length`, else a `GrowingCache`.
    `weight` is any matrix of the layer.
    """
    length = max_length if window is None else window - 1
    if length is None:
        # A zero computed from a weight: a constant would be a static size, which cannot grow.
        length = ops.cast(weight[0, 0] < weight[0, 0], "int32")
    keys, values = (ops.zeros((*leading, length, dim), dtype=dtype) for dim in dims)
    if window is None and max_length is None:
        return GrowingCache((keys, keys), (values, values))
    kind = FixedCache if window is None else RollingCache
    return kind(keys, values, ops.zeros((), dtype="int32"))


class DecoderBlockCache(NamedTuple):
    """Caches of a decoder block."""

    self_attention: GrowingCache | FixedCache | RollingCache
    # Without cross-attention an empty nest: loops of TensorFlow refuse None.
    cross_attention: CompleteCache | tuple = ()


class DecoderCache(NamedTuple):
    """Cache of a decoder."""

    length: Tensor  # int32 [], number of positions decoded
    blocks: tuple  # the blocks' caches

    def reorder(self, parents: Tensor | None) -> Self:
        """Returns the cache whose hypothesis h was `parents[h]`, int32; None for no change."""
        if parents is None:
            return self
        return self._replace_self_attention(lambda cache: take_entries(cache, parents))

    def merged(self) -> Self:
        """Returns the cache with the parts of each `GrowingCache` merged."""
        return self._replace_self_attention(
            lambda cache: cache.merged() if isinstance(cache, GrowingCache) else cache
        )

    def _replace_self_attention(self, function):
        blocks = (
            block._replace(self_attention=function(block.self_attention)) for block in self.blocks
        )
        return self._replace(blocks=tuple(blocks))


def check_built(layer: keras.layers.Layer) -> None:
    """Raises `ValueError` unless a layer that makes a cache is built."""
    if not layer.built:
        rule = "A cache has the sizes of a layer's weights: call or build the layer first"
        raise ValueError(f"{rule}. Received: {type(layer).__name__} {layer.name!r}, not built")


def take_entries(tensors: Any, indices: Tensor) -> Any:
    """Takes entries of the first axis, int32 `[kept]`, of each tensor of a nest; scalars stay."""
    return keras.tree.map_structure(
        lambda tensor: ops.take(tensor, indices, axis=0) if len(tensor.shape) else tensor, tensors
    )


def hypotheses_of(sentences: Tensor, width: Any) -> Tensor:
    """Returns the indices of the `width` hypotheses of each sentence, int32 `[kept * width]`."""
    members = ops.arange(width, dtype="int32")
    # [kept, width] -> [kept * width]
    return ops.reshape(ops.expand_dims(sentences * width, 1) + members, (-1,))
