"""The arrays of an epoch in its order, and the batches that are cut from them.

The functions use NumPy, or TensorFlow if its module is passed as `tf`; then `groups` is a tensor
and `epoch` an int64 scalar tensor. The order is computed from (seed, epoch, index), so there is no
random state to save or to share: a resumed training and every worker can compute the order of any
epoch. The random numbers follow SplitMix64 (Steele et al., 2014, "Fast Splittable Pseudorandom
Number Generators").
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.encoded_corpus import EncodedCorpus, shared_tensor
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Random bits of a 63-bit sort key; the other 23 bits are enough for 8 million groups.
_RANDOM_BITS = 40
_GROUP_STEP = np.int64(1 << _RANDOM_BITS)

Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]


class EpochArrays(NamedTuple):
    """Everything that the batches of an epoch are made of, as arrays or tensors.

    All are int64 except for the ids, which are uint16 or int32.
    """

    source_ids: np.ndarray  # [source tokens]
    source_offsets: np.ndarray  # [pairs + 1]
    target_ids: np.ndarray  # [target tokens]
    target_offsets: np.ndarray  # [pairs + 1]
    pairs: np.ndarray  # [pairs], in the order of their batches
    splits: np.ndarray  # [batches + 1]: batch `i` has `pairs[splits[i]:splits[i + 1]]`
    shapes: np.ndarray  # [batches, 3]: rows, source width and target width
    order: np.ndarray  # [batches], the order of the batches


def arrange_epoch(corpus, plan: BatchPlan, seed: int | None, epoch, tf=None) -> EpochArrays:
    """Returns the arrays of an epoch; `corpus` is `EncodedCorpus.arrays()`."""
    arranged = arrange_pairs(plan.groups, seed, epoch, tf)
    pairs = arranged[plan.places] if tf is None else tf.gather(arranged, plan.places)
    order = shuffle_batches(len(plan), seed, epoch, tf)
    return EpochArrays(*corpus, pairs, plan.splits, plan.shapes, order)


def arrange_pairs(groups, seed: int | None, epoch, tf=None):
    """Returns the indices of the pairs, sorted by group; `groups` and result are int64 `[pairs]`.

    The order within each group is random; without a seed, it is the order of the corpus.
    """
    if seed is None:
        return _argsort(groups, tf)
    count = len(groups) if tf is None else tf.size(groups, tf.int64)
    return _argsort(groups * _GROUP_STEP + _random_bits(count, seed, 0, epoch, tf), tf)


def shuffle_batches(num_batches: int, seed: int | None, epoch, tf=None):
    """Returns the numbers of the batches in a random order, int64 `[num_batches]`."""
    if seed is None:
        return np.arange(num_batches, dtype=np.int64)
    return _argsort(_random_bits(num_batches, seed, 1, epoch, tf), tf)


def _argsort(keys, tf):
    if tf is None:
        return np.argsort(keys, kind="stable")
    return tf.cast(tf.argsort(keys, stable=True), tf.int64)


def _random_bits(count, seed, stream, epoch, tf):
    # Arrays: NumPy warns where the product of scalars overflows, which is intended here.
    start = _scramble(np.array([seed], np.uint64) + np.uint64(stream) * _GOLDEN, np)
    if tf is None:
        numbers, epoch, bitwise = np.arange(count, dtype=np.uint64), np.uint64([epoch]), np
    else:
        numbers, bitwise = tf.cast(tf.range(count, dtype=tf.int64), tf.uint64), tf.bitwise
        epoch = tf.cast(epoch, tf.uint64)
    values = _scramble(_scramble(start + epoch * _GOLDEN, bitwise) + numbers * _GOLDEN, bitwise)
    values = bitwise.right_shift(values, np.uint64(64 - _RANDOM_BITS))
    return values.astype(np.int64) if tf is None else tf.cast(values, tf.int64)


def _scramble(values, bitwise):
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(30))) * _FIRST
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(27))) * _SECOND
    return bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(31)))


def make_batch(arrays: EpochArrays, number, packed: bool, tf=None) -> Batch:
    """Returns `(inputs, labels, weights)` of a batch, as `TokenBatches` describes them.

    With `packed`, a row has several segments, each of which ends with EOS.
    """
    xp, arange = (np, np.arange) if tf is None else (tf.experimental.numpy, tf.range)
    first, end = arrays.splits[number], arrays.splits[number + 1]
    rows, source_width, target_width = (arrays.shapes[number, side] for side in range(3))
    filled = arange(rows) < end - first
    pairs = xp.take(arrays.pairs, first + arange(rows), mode="clip")

    def padded(ids, offsets, width):
        starts = xp.take(offsets, pairs, mode="clip")
        lengths = xp.where(filled, xp.take(offsets, pairs + 1, mode="clip") - starts, 0)
        columns = arange(width)
        # Positions past the end of a row read the next row, or the last id, and are masked.
        gathered = xp.take(ids, starts[:, None] + columns, mode="clip")
        return xp.where(columns < lengths[:, None], gathered, PAD_ID), lengths

    source, _ = padded(arrays.source_ids, arrays.source_offsets, source_width)
    target, lengths = padded(arrays.target_ids, arrays.target_offsets, target_width)
    ends = (arange(target_width) == lengths[:, None]) & filled[:, None]
    source, target = xp.asarray(source, np.int32), xp.asarray(target, np.int32)
    labels = xp.where(ends, np.int32(EOS_ID), target)
    # Rows without a pair contain padding only.
    begin = xp.where(filled, np.int32(BOS_ID), np.int32(PAD_ID))[:, None]
    target = xp.concatenate([begin, target[:, :-1]], axis=1)
    inputs = {"source": source, "target": target}
    if packed:
        inputs["target"] = xp.where(target == EOS_ID, np.int32(BOS_ID), target)
        inputs["source_segments"] = _segments(source, xp)
        inputs["target_segments"] = _segments(labels, xp)
    mask = xp.asarray(labels != PAD_ID, np.float32)
    return inputs, labels, mask / xp.sum(mask)


def _segments(ids, xp):
    """Returns 1, 2, ... for the segments of a row, which end with EOS, and 0 on padding."""
    ends = xp.asarray(ids == EOS_ID, np.int32)
    ended_before = xp.cumsum(ends, axis=1, dtype=np.int32) - ends
    return xp.asarray(xp.where(ids == PAD_ID, 0, ended_before + 1), np.int32)


def planned_epochs(encoded: EncodedCorpus, plan: BatchPlan, seed: int | None) -> Callable:
    """Returns a function from the number of an epoch to its arrays, for a fixed corpus."""
    import tensorflow as tf

    corpus = [shared_tensor(array) for array in encoded.arrays()]
    plan = BatchPlan(*map(shared_tensor, plan))
    return functools.partial(arrange_epoch, corpus, plan, seed, tf=tf)


def loaded_epochs(load: Callable[[int], EpochArrays]) -> Callable:
    """Returns a function from the number of an epoch to its arrays, which `load` returns."""
    import tensorflow as tf

    dtypes = [tf.int32, tf.int64, tf.int32, tf.int64, tf.int64, tf.int64, tf.int64, tf.int64]

    def arrays_of(number):
        arrays = load(int(number))
        ids = {name: getattr(arrays, name).astype("int32") for name in ("source_ids", "target_ids")}
        return tuple(arrays._replace(**ids))

    def arrange(epoch):
        arrays = tf.numpy_function(arrays_of, [epoch], dtypes)
        for array, dimensions in zip(arrays, [1, 1, 1, 1, 1, 1, 2, 1], strict=True):
            array.set_shape([None] * dimensions)
        return EpochArrays(*arrays)

    return arrange


def batch_dataset(
    arrange: Callable, first_epoch: int, first_batch: int, repeat: bool, packed: bool
) -> Any:
    """Returns a `tf.data.Dataset` of batches, cut by TensorFlow operations as in `make_batch`.

    It contains `first_epoch` from `first_batch` on and, with `repeat`, all later epochs. Batches
    are cut without Python: deleting an iterator blocks Python until the `tf.data` thread ends, and
    a thread that waits for Python would never end.
    """
    import tensorflow as tf

    def batches(epoch, arrays):
        first = tf.where(tf.equal(epoch, first_epoch), tf.constant(first_batch, tf.int64), 0)
        numbers = tf.data.Dataset.range(first, tf.size(arrays.order, tf.int64))
        cut = functools.partial(make_batch, arrays, packed=packed, tf=tf)
        return numbers.map(lambda number: cut(arrays.order[number]), tf.data.AUTOTUNE)

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max if repeat else first_epoch + 1)
    # One epoch ahead, so that no step waits for the next epoch's order.
    return epochs.map(lambda epoch: (epoch, arrange(epoch))).prefetch(1).flat_map(batches)
