"""Exact attention by blocks, in memory that grows linearly with the length; and in a window."""

import keras
from keras import ops

from keras_transformer.layers.backend_operations import loop_in_turn, map_in_turn
from keras_transformer.layers.tensors import (
    at_least_float32,
    causal_mask,
    combine_masks,
    cut,
    greatest,
    least,
)

# Maximum number of queries and of keys in a block.
_SIZE = 512
# A masked score in float32 or float64: exp() of it is exactly 0, and it cannot overflow.
MASKED_SCORE = -1e30
# Minimum number of positions in a block of a window: smaller matrices are multiplied slowly.
MIN_BLOCK = 32


def attend_fused(query, key, value, attention_mask=None, is_causal=False):
    """Returns the outputs of `attend_by_blocks`, from the fused attention of JAX or torch."""
    mask = None
    if attention_mask is not None:
        causal = causal_mask(ops.shape(query)[2], ops.shape(key)[2], 0) if is_causal else None
        mask = ops.expand_dims(combine_masks(causal, attention_mask), 1)
        if keras.backend.backend() == "jax":  # It needs the keys of each query.
            mask = ops.logical_and(mask, ops.ones((ops.shape(query)[2], 1), dtype="bool"))
        is_causal = False
    # Keras' layout is [batch, length, heads, dim].
    inputs = (ops.swapaxes(states, 1, 2) for states in (query, key, value))
    outputs = ops.dot_product_attention(*inputs, mask=mask, scale=1.0, is_causal=is_causal)
    outputs = ops.swapaxes(outputs, 1, 2)
    if mask is None:
        return outputs
    return outputs * ops.cast(ops.any(mask, axis=-1, keepdims=True), outputs.dtype)


def attend_by_blocks(query, key, value, attention_mask=None, is_causal=False, size=_SIZE):
    """Returns the outputs of an `AttentionFunction` for scaled queries, without all scores at once.

    Each block of queries attends to the blocks of keys in turn. An online softmax keeps the maximum
    of the scores so far and the sum of their exponentials. The gradient recomputes the scores.

    Reference: Rabe and Staats (2021); Dao et al. (2022), "FlashAttention".
    """
    inputs = query, key, value
    if attention_mask is not None:
        # A custom gradient in JAX takes only float arguments, and no tensors of the caller.
        inputs = *inputs, ops.cast(attention_mask, query.dtype)

    @ops.custom_gradient
    def attend(query, key, value, *mask):
        blocks = _Blocks(query, key, mask, is_causal, size)
        queries, keys, values = blocks.queries(query), blocks.keys(key), blocks.keys(value)
        (num_query_blocks, num_key_blocks), dtype = blocks.numbers, blocks.dtype
        outputs, log_sums = map_in_turn(
            lambda i: blocks.attend(i, queries[i], keys, values), num_query_blocks, (dtype, dtype)
        )

        def gradient(*arguments, upstream=None):
            upstream = arguments[0] if upstream is None else upstream  # A keyword on torch.
            upstream = blocks.queries(ops.cast(upstream, outputs.dtype))
            # For each query, the sum over the keys of weight * gradient of the weight.
            sums = ops.sum(upstream * outputs, axis=-1, keepdims=True)
            of_queries = queries, log_sums, upstream, sums
            query_gradients = map_in_turn(
                lambda i: blocks.query_gradient(
                    i, [tensor[i] for tensor in of_queries], keys, values
                ),
                num_query_blocks,
                dtype,
            )
            key_gradients, value_gradients = map_in_turn(
                lambda j: blocks.key_gradients(j, of_queries, keys[j], values[j]),
                num_key_blocks,
                (dtype, dtype),
            )
            return (
                _joined(query_gradients, query),
                _joined(key_gradients, key),
                _joined(value_gradients, value),
                *map(ops.zeros_like, mask),
            )

        return _joined(outputs, query), gradient

    return ops.cast(attend(*inputs), value.dtype)


class _Blocks:
    """Blocks of queries, with index i, and blocks of keys, with index j."""

    def __init__(self, query, key, mask, is_causal, size):
        lengths = [ops.shape(query)[2], ops.shape(key)[2]]
        self.sizes = [greatest(least(length, size), 1) for length in lengths]
        self.numbers = [
            greatest((length + size - 1) // size, 1)
            for length, size in zip(lengths, self.sizes, strict=True)
        ]
        self.key_length, self.is_causal = lengths[1], is_causal
        self.dtype = at_least_float32(query.dtype)
        self.mask = None
        if mask:
            mask = _with_known_rows(ops.cast(mask[0], "bool"), lengths[0])
            self.is_same_for_queries = mask.shape[1] == 1
            mask = cut(mask, 2, self.numbers[1], self.sizes[1])
            cuts = (1, 1) if self.is_same_for_queries else (self.numbers[0], self.sizes[0])
            mask = cut(mask, 1, *cuts)
            # [query blocks or 1, key blocks, batch or 1, 1, queries or 1, keys]
            self.mask = ops.expand_dims(ops.transpose(mask, (1, 3, 0, 2, 4)), 3)

    def queries(self, tensor):
        """Returns `[batch, heads, query_length, dim]` as `[number, batch, heads, size, dim]`."""
        return ops.transpose(cut(tensor, 2, self.numbers[0], self.sizes[0]), (2, 0, 1, 3, 4))

    def keys(self, tensor):
        """Returns `[batch, heads, key_length, dim]` as `[number, batch, heads, size, dim]`."""
        return ops.transpose(cut(tensor, 2, self.numbers[1], self.sizes[1]), (2, 0, 1, 3, 4))

    def attend(self, i, query, keys, values):
        """Returns the outputs of a block of queries, and the log-sum-exp of their scores."""

        def step(j, state):
            maximum, total, outputs = state
            scores = self.scores(i, j, query, keys[j])
            new_maximum = ops.max(scores, axis=-1, keepdims=True, initial=MASKED_SCORE)
            new_maximum = ops.maximum(maximum, new_maximum)
            scale, weights = ops.exp(maximum - new_maximum), ops.exp(scores - new_maximum)
            total = total * scale + ops.sum(weights, axis=-1, keepdims=True)
            return new_maximum, total, outputs * scale + self.product(weights, values[j])

        zeros = ops.zeros_like(query[..., :1], dtype=self.dtype)
        outputs = self.product(zeros, ops.zeros_like(values[0][..., :1, :]))
        state = zeros + MASKED_SCORE, zeros, outputs
        maximum, total, outputs = loop_in_turn(0, self.end(i), step, state)
        has_keys = maximum > MASKED_SCORE / 2
        # With 0 for a masked row, its weights in the gradient are exp(MASKED_SCORE - 0) = 0.
        log_sums = ops.where(has_keys, maximum + ops.log(total), 0.0)
        return ops.where(has_keys, outputs / total, 0.0), log_sums

    def query_gradient(self, i, of_query, keys, values):
        """Returns the gradient of a block of queries."""

        def step(j, total):
            _, score_gradients = self.gradients(i, j, of_query, keys[j], values[j])
            return total + self.product(score_gradients, keys[j])

        start = ops.zeros_like(of_query[0], dtype=self.dtype)
        return loop_in_turn(0, self.end(i), step, start)

    def key_gradients(self, j, of_queries, key, value):
        """Returns the gradients of a block of keys and of their values."""

        def step(i, totals):
            query, _, upstream, _ = of_query = [tensor[i] for tensor in of_queries]
            weights, score_gradients = self.gradients(i, j, of_query, key, value)
            key_gradient = self.product(ops.swapaxes(score_gradients, -1, -2), query)
            value_gradient = self.product(ops.swapaxes(weights, -1, -2), upstream)
            return totals[0] + key_gradient, totals[1] + value_gradient

        start = tuple(ops.zeros_like(block, dtype=self.dtype) for block in (key, value))
        first = j * self.sizes[1] // self.sizes[0] if self.is_causal else 0
        return loop_in_turn(first, self.numbers[0], step, start)

    def gradients(self, i, j, of_query, key, value):
        """Returns the weights of blocks i and j, and the gradient of their scores."""
        query, log_sums, upstream, sums = of_query
        weights = ops.exp(self.scores(i, j, query, key) - log_sums)
        return weights, weights * (self.product(upstream, ops.swapaxes(value, -1, -2)) - sums)

    def scores(self, i, j, query, key):
        """Returns the scores of blocks i and j, `MASKED_SCORE` where the mask hides a key."""
        scores = self.product(query, ops.swapaxes(key, -1, -2))
        return ops.where(self.is_visible(i, j), scores, MASKED_SCORE)

    def is_visible(self, i, j):
        """Returns the mask of two blocks, which broadcasts to `[batch, heads, queries, keys]`."""
        keys = j * self.sizes[1] + ops.arange(self.sizes[1], dtype="int32")
        is_visible = keys < self.key_length
        if self.is_causal:
            queries = i * self.sizes[0] + ops.arange(self.sizes[0], dtype="int32")
            is_visible = ops.logical_and(is_visible, keys <= ops.expand_dims(queries, 1))
        if self.mask is not None:
            is_visible = ops.logical_and(
                is_visible, self.mask[0 if self.is_same_for_queries else i, j]
            )
        return is_visible

    def end(self, i):
        """Returns the number of blocks of keys that a block of queries sees."""
        if not self.is_causal:
            return self.numbers[1]
        last_query = (i + 1) * self.sizes[0] - 1
        return least(last_query // self.sizes[1] + 1, self.numbers[1])

    def product(self, first, second):
        """Returns the matrix product in the dtype of `second`, cast to at least float32."""
        return ops.cast(ops.matmul(ops.cast(first, second.dtype), second), self.dtype)


def _joined(blocks, like):
    """Returns `[number, batch, heads, size, dim]` as `[batch, heads, length, dim]`."""
    number, batch, heads, size, dim = ops.shape(blocks)
    whole = ops.reshape(ops.transpose(blocks, (1, 2, 0, 3, 4)), (batch, heads, number * size, dim))
    return ops.cast(whole[:, :, : ops.shape(like)[2]], like.dtype)


def attend_in_window(
    attention, query, key, value, window, is_causal, position, attention_mask, **options
):
    """Attends from each position to the positions less than `window` away, itself included.

    The sequence is cut into blocks, within which the `AttentionFunction` attends. The queries of a
    block attend to the keys of the block, to the `window - 1` keys before it and, unless
    `is_causal`, to the `window - 1` keys after it. `options` are passed to the function.

    Returns:
        `[batch, heads, length, value_dim]`. With `return_attention_scores=True`, a tuple of this
        tensor and the weights `[batch, heads, length, width]`: their last axis holds `width` keys,
        `2 * window - 1` or `window` if causal, from `window - 1` positions before the query on.
    """
    length, reach = ops.shape(query)[2], window - 1
    returns_weights = options["return_attention_scores"]
    if not returns_weights:  # A window that is wider than the sequence costs no more.
        reach = least(reach, length)
    blocks = _Windows(length, reach, is_causal)
    outputs = attention(
        blocks.cut(query, 2),
        blocks.neighbors(key, 2),
        blocks.neighbors(value, 2),
        attention_mask=blocks.mask(attention_mask),
        distances=None if position is None else position.between(blocks.queries, blocks.keys),
        **options,
    )
    if not returns_weights:
        return blocks.joined(outputs)
    outputs, weights = outputs
    return blocks.joined(outputs), blocks.joined(blocks.band(weights))


class _Windows:
    """Blocks of `size` positions; each sees `before` to its left and `after` to its right."""

    def __init__(self, length, reach, is_causal):
        self.length, self.size = length, greatest(reach, greatest(least(length, MIN_BLOCK), 1))
        self.is_causal, self.before, self.after = is_causal, reach, 0 if is_causal else reach
        self.number = (length + self.size - 1) // self.size
        # Positions of the queries and of the keys of a block, from its first neighbor.
        self.queries = ops.arange(self.size, dtype="int32") + self.before
        self.keys = ops.arange(self.before + self.size + self.after, dtype="int32")

    def cut(self, tensor, axis):
        return cut(tensor, axis, self.number, self.size)

    def neighbors(self, tensor, axis):
        """Returns `[..., length, ...]` as `[..., number, before + size + after, ...]`."""
        blocks = self.cut(tensor, axis)
        zeros = ops.zeros_like(_slice(blocks, axis, 0, 1))
        previous = ops.concatenate([zeros, _slice(blocks, axis, 0, self.number - 1)], axis)
        parts = [_slice(previous, axis + 1, self.size - self.before, self.size), blocks]
        if not self.is_causal:
            following = ops.concatenate([_slice(blocks, axis, 1, self.number), zeros], axis)
            parts.append(_slice(following, axis + 1, 0, self.after))
        return ops.concatenate(parts, axis + 1)

    def mask(self, attention_mask):
        """Returns the mask of the blocks, bool `[batch or 1, number, size, keys]`."""
        distance = ops.expand_dims(self.keys, 0) - ops.expand_dims(self.queries, 1)
        in_band = ops.logical_and(distance >= -self.before, distance <= self.after)
        is_key = self.neighbors(ops.ones((1, self.length), dtype="bool"), 1)  # False on padding
        mask = ops.logical_and(in_band, ops.expand_dims(is_key, 2))
        if attention_mask is None:
            return mask
        attention_mask = _with_known_rows(attention_mask, self.length)
        if attention_mask.shape[1] == 1:
            allowed = ops.expand_dims(self.neighbors(attention_mask[:, 0], 1), 2)
        else:
            starts = ops.arange(self.number, dtype="int32") * self.size - self.before
            columns = ops.expand_dims(starts, 1) + self.keys  # [number, keys]
            columns = ops.expand_dims(ops.clip(columns, 0, self.length), 1)
            # Padded with a key, because TensorFlow cannot gather from an axis of length 0.
            blocks = self.cut(ops.pad(attention_mask, [[0, 0], [0, 0], [0, 1]]), 1)
            columns = ops.broadcast_to(columns, (*ops.shape(blocks)[:3], ops.shape(self.keys)[0]))
            allowed = ops.take_along_axis(blocks, columns, axis=3)
        return ops.logical_and(mask, allowed)

    def band(self, weights):
        """Returns the weights of the keys that a query may see, `[..., size, width]`."""
        band = ops.arange(self.before + 1 + self.after, dtype="int32")
        columns = ops.expand_dims(ops.arange(self.size, dtype="int32"), 1) + band
        columns = ops.broadcast_to(columns, (*ops.shape(weights)[:-1], columns.shape[1]))
        return ops.take_along_axis(weights, columns, axis=-1)

    def joined(self, blocks):
        """Returns `[batch, heads, number, size, dim]` as `[batch, heads, length, dim]`."""
        batch, heads, number, size, dim = ops.shape(blocks)
        whole = ops.reshape(blocks, (batch, heads, number * size, dim))
        return whole[:, :, : self.length]


def _with_known_rows(mask, query_length):
    """Returns a mask that has one row by its static shape, or else a row for each query."""
    if isinstance(mask.shape[1], int):
        return mask
    return ops.logical_and(mask, ops.ones((query_length, 1), dtype="bool"))


def _slice(tensor, axis, start, end):
    return tensor[(slice(None),) * axis + (slice(start, end),)]
