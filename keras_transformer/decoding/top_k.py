"""`top_k` with ties in a fixed order on every backend."""

import functools
import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor

# Backends whose own top_k promises the lower index first among equal values.
_STABLE_BACKENDS = ("tensorflow", "jax")
# Minimum length of rows whose length is not static; only TensorFlow has such rows.
SMALLEST_DYNAMIC_SIZE = 512


def top_k(values: Tensor, k: int, terms: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
    """Returns the `k` largest values of each row and their places; ties go to the lower place.

    The tensors `terms`, each `[batch, width]`, are added in turn to the rows of `values`,
    `[batch * width, size]`; then the `width` rows of a sentence are ranked as one long row.

    Long rows are searched by blocks: the k largest values lie in the k blocks whose maxima are
    largest, so only these are ranked.

    Values are `[rows, size]`, without NaN, and `width * size` is at least `k`. A size that is not
    static must be at least `SMALLEST_DYNAMIC_SIZE`, and `k` at most `16 * width`. The results are
    `[batch, k]`, descending, and int32 `[batch, k]`.
    """
    size = ops.shape(values)[-1]
    width = terms[0].shape[-1] if terms else 1
    block_size = _block_size(values.shape[-1], width, k)
    if block_size is None:
        return _direct_top_k(_sums(values, terms, width), k)
    num_whole = (size - 1) // block_size
    end = num_whole * block_size
    whole = ops.reshape(values[:, :end], (-1, num_whole, block_size))
    # The last block has from 1 to `block_size` values.
    last = ops.max(values[:, end:], axis=-1, keepdims=True)
    maxima = ops.concatenate([ops.max(whole, axis=-1), last], axis=1)  # [rows, blocks]
    num_blocks = num_whole + 1
    _, blocks = _direct_top_k(_sums(maxima, terms, width), k)
    # Blocks in ascending order keep the order of places, so that ties go to the lower place.
    blocks = ops.sort(blocks, axis=-1)  # [batch, k]
    rows, blocks = blocks // num_blocks, blocks % num_blocks
    places = ops.expand_dims(block_size * blocks, -1) + ops.arange(block_size, dtype="int32")
    is_value = places < size
    places = ops.minimum(places, size - 1) + ops.expand_dims(size * rows, -1)
    places = ops.reshape(places, (-1, k * block_size))  # within the sentence
    batch = ops.shape(places)[0]
    first = (width * size) * ops.expand_dims(ops.arange(batch, dtype="int32"), -1)
    kept = ops.reshape(ops.take(ops.reshape(values, (-1,)), first + places), (-1, k, block_size))
    for term in terms:
        kept = kept + ops.expand_dims(ops.take_along_axis(term, rows, axis=-1), -1)
    kept = ops.where(is_value, kept, float("-inf"))
    largest, best = _direct_top_k(ops.reshape(kept, (-1, k * block_size)), k)
    return largest, ops.take_along_axis(places, best, axis=-1)


@functools.cache
def _block_size(size, width, k):
    """Returns the block size for `width` rows of `size` values; None to rank all of them."""
    if size is None:
        return SMALLEST_DYNAMIC_SIZE // 16 if k > 1 else None
    # About as many maxima as there are values in k blocks. Multiples of 16 are fastest.
    block_size = 16 * max(1, round(math.sqrt(width * size / k) / 16))
    return block_size if k > 1 and width * size >= 4 * k * block_size else None


def _sums(values, terms, width):
    """Returns values `[batch * width, size]` plus the terms, as `[batch, width * size]`."""
    size = ops.shape(values)[-1]
    sums = ops.reshape(values, (-1, width, size))
    for term in terms:
        sums = sums + ops.expand_dims(term, -1)
    return ops.reshape(sums, (-1, width * size))


def _direct_top_k(values, k):
    if keras.config.backend() in _STABLE_BACKENDS:
        largest, places = ops.top_k(values, k)
        return largest, ops.cast(places, "int32")
    # Both take the first of equal values on torch, where the sort is stable.
    if k == 1:
        places = ops.argmax(values, axis=-1, keepdims=True)
    else:
        places = ops.argsort(ops.negative(values), axis=-1)[:, :k]
    return ops.take_along_axis(values, places, axis=-1), ops.cast(places, "int32")
