"""`top_k` with ties in a fixed order on every backend."""

import functools
import math

import keras
from keras import ops

# Backends whose own top_k promises the lower index first among equal values.
_STABLE_BACKENDS = ("tensorflow", "jax")
# Minimum number of values if it is not static, which it always is but on TensorFlow.
SMALLEST_DYNAMIC_SIZE = 512
# Minimum number of values among which blocks find the largest one faster.
_SMALLEST_SIZE_OF_ONE = 2048


def top_k(values, k, terms=()):
    """Returns the `k` largest values of each sentence and their indices; ties: the lower index.

    The `values` of a sentence are `width` hypotheses of `size` numbers, `[batch * width, size]`,
    without NaN, ranked as one list of `width * size` numbers, at least `k`. The tensors `terms`,
    each `[batch, width]`, are added to the hypotheses first, in turn; without them the width is 1.

    Long lists are searched by blocks: the k largest values lie in the k blocks whose maxima are
    largest, so only these are ranked. A size that is not static must be at least
    `SMALLEST_DYNAMIC_SIZE`, and `k` at most `16 * width`. The results are `[batch, k]`, descending,
    and int32 `[batch, k]`.
    """
    size = ops.shape(values)[-1]
    width = terms[0].shape[-1] if terms else 1
    block_size = _block_size(values.shape[-1], width, k)
    # Integers cannot be padded with minus infinity; they are few.
    if block_size is None or keras.backend.is_int_dtype(values.dtype):
        return _direct_top_k(_sums(values, terms, width), k)
    missing = -size % block_size
    if not (isinstance(missing, int) and missing == 0):
        values = ops.pad(values, [[0, 0], [0, missing]], constant_values=float("-inf"))
    # [batch * width, size] -> [batch * width, blocks, block_size]
    values = ops.reshape(values, (-1, (size + missing) // block_size, block_size))
    maxima = ops.max(values, axis=-1)  # [batch * width, blocks]
    num_blocks = ops.shape(maxima)[1]
    _, blocks = _direct_top_k(_sums(maxima, terms, width), k)
    # Blocks in ascending order keep the order of indices, so that ties go to the lower index.
    blocks = ops.sort(blocks, axis=-1) if k > 1 else blocks  # [batch, k]
    members, starts = blocks // num_blocks, block_size * (blocks % num_blocks)
    batch = ops.shape(blocks)[0]
    first = (width * num_blocks) * ops.expand_dims(ops.arange(batch, dtype="int32"), -1)
    # [batch * width, blocks, block_size] -> [batch * width * blocks, block_size]
    kept = ops.take(ops.reshape(values, (-1, block_size)), first + blocks, axis=0)
    for term in terms:
        kept = kept + ops.expand_dims(ops.take_along_axis(term, members, axis=-1), -1)
    # [batch, k, block_size] -> [batch, k * block_size]
    largest, best = _direct_top_k(ops.reshape(kept, (-1, k * block_size)), k)
    starts = ops.take_along_axis(size * members + starts, best // block_size, axis=-1)
    return largest, starts + best % block_size


@functools.cache
def _block_size(size, width, k):
    """Returns the block size for `width` hypotheses of `size` values; None to rank all of them."""
    if size is None:
        return SMALLEST_DYNAMIC_SIZE // 16 if k > 1 else None
    # The factor makes blocks larger, because the maxima of small blocks take long to compute.
    wanted = 1.5 * math.sqrt(width * size / k)
    if width * size < max(4 * k * wanted, _SMALLEST_SIZE_OF_ONE if k == 1 else 0):
        return None
    # Blocks of equal size need no padding, and multiples of 16 are fastest.
    for step in (16, 1):
        divisors = [number for number in range(step, size, step) if size % number == 0]
        nearest = min(divisors, key=lambda number: abs(number - wanted), default=0)
        if wanted / 2 <= nearest <= 2 * wanted:
            return nearest
    return 16 * max(1, round(wanted / 16))


def _sums(values, terms, width):
    """Returns values `[batch * width, size]` plus the terms, as `[batch, width * size]`."""
    size = ops.shape(values)[-1]
    sums = ops.reshape(values, (-1, width, size))  # [batch, width, size]
    for term in terms:
        sums = sums + ops.expand_dims(term, -1)
    return ops.reshape(sums, (-1, width * size))


def _direct_top_k(values, k):
    if keras.config.backend() in _STABLE_BACKENDS:
        largest, indices = ops.top_k(values, k)
        return largest, ops.cast(indices, "int32")
    # Both take the first of equal values on torch, where the sort is stable.
    if k == 1:
        indices = ops.argmax(values, axis=-1, keepdims=True)
    else:
        indices = ops.argsort(ops.negative(values), axis=-1)[:, :k]
    return ops.take_along_axis(values, indices, axis=-1), ops.cast(indices, "int32")
