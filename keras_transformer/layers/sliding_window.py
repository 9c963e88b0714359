"""Self-attention restricted to a neighborhood, Table 1: time and memory of O(r n d)."""

from keras import ops

from keras_transformer.layers.tensors import cut, greatest, least

# Smaller matrices are multiplied at a fraction of a processor's rate.
_MIN_BLOCK = 32


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
    blocks = _Blocks(length, reach, is_causal)
    outputs = attention(
        blocks.cut(query, 2),
        blocks.neighbors(key, 2),
        blocks.neighbors(value, 2),
        attention_mask=blocks.mask(attention_mask),
        distances=position and position.between(blocks.queries, blocks.keys),
        **options,
    )
    if not returns_weights:
        return blocks.joined(outputs)
    outputs, weights = outputs
    return blocks.joined(outputs), blocks.joined(blocks.band(weights))


class _Blocks:
    """Blocks of `size` positions; each sees `before` to its left and `after` to its right."""

    def __init__(self, length, reach, is_causal):
        self.length, self.size = length, greatest(reach, greatest(least(length, _MIN_BLOCK), 1))
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


def _slice(tensor, axis, start, end):
    return tensor[(slice(None),) * axis + (slice(start, end),)]
