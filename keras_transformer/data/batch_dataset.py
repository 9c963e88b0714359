"""Batches as TensorFlow operations.

A `tf.data` thread that waits for Python while Python waits for that thread to end, as it does
where an iterator is deleted, waits for ever. So the batches of a corpus are cut without any Python.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.data.aligned_arrays import shared_tensor
from keras_transformer.data.batch_plan import BatchPlan, EpochArrays
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.epoch_order import arrange_pairs_in_graph, shuffle_batches_in_graph
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID


def planned_epochs(
    encoded: EncodedCorpus, plan: BatchPlan, seed: int | None, first: int, repeat: bool
) -> tf.data.Dataset:
    """Returns the epochs of a corpus that is the same in each.

    Args:
        encoded: the corpus.
        plan: its plan.
        seed: of the order; None: as in the corpus.
        first: int, number of the first epoch.
        repeat: without end, or only this one.

    Returns:
        dataset of (number, `EpochArrays`).
    """
    corpus = [shared_tensor(array) for array in encoded.arrays()]
    groups, places, splits, shapes = map(shared_tensor, plan)

    def arrange(epoch):
        if seed is None:
            arranged, order = tf.argsort(groups, stable=True), tf.range(len(plan), dtype=tf.int64)
        else:
            arranged = arrange_pairs_in_graph(groups, seed, epoch)
            order = shuffle_batches_in_graph(len(plan), seed, epoch)
        pairs = tf.gather(tf.cast(arranged, tf.int64), places)
        return epoch, EpochArrays(*corpus, pairs, splits, shapes, order)

    # One epoch ahead, so that no step waits for an order.
    return _epoch_numbers(first, repeat).map(arrange).prefetch(1)


def loaded_epochs(load: Callable[[int], EpochArrays], first: int, repeat: bool) -> tf.data.Dataset:
    """Returns epochs that a Python function makes, each while the one before is used.

    Args:
        load: from the number of an epoch to its `EpochArrays`.
        first: int, number of the first epoch.
        repeat: without end, or only this one.

    Returns:
        dataset of (number, `EpochArrays`).
    """
    dtypes = [tf.int32, tf.int64, tf.int32, tf.int64, tf.int64, tf.int64, tf.int64, tf.int64]

    def arrays_of(number):
        arrays = load(int(number))
        ids = {name: getattr(arrays, name).astype("int32") for name in ("source_ids", "target_ids")}
        return tuple(arrays._replace(**ids))

    def arrange(epoch):
        arrays = tf.numpy_function(arrays_of, [epoch], dtypes)
        for array, dimensions in zip(arrays, [1, 1, 1, 1, 1, 1, 2, 1], strict=True):
            array.set_shape([None] * dimensions)
        return epoch, EpochArrays(*arrays)

    return _epoch_numbers(first, repeat).map(arrange).prefetch(1)


def batch_dataset(
    epochs: tf.data.Dataset, first_epoch: int, first_batch: int, packed: bool
) -> tf.data.Dataset:
    """Cuts epochs into batches.

    Args:
        epochs: of `planned_epochs` or `loaded_epochs`.
        first_epoch: int, number of the first of them.
        first_batch: int, how many of its batches to leave out.
        packed: whether rows have several segments, each of which EOS ends.

    Returns:
        dataset of `(inputs, labels, weights)`, as `TokenBatches` describes them.
    """

    def batches(epoch, arrays):
        first = tf.where(tf.equal(epoch, first_epoch), tf.constant(first_batch, tf.int64), 0)
        numbers = tf.data.Dataset.range(first, tf.size(arrays.order, tf.int64))
        return numbers.map(
            lambda number: _make_batch(arrays, arrays.order[number], packed), tf.data.AUTOTUNE
        )

    return epochs.flat_map(batches)


def _epoch_numbers(first, repeat):
    return tf.data.Dataset.range(first, tf.int64.max if repeat else first + 1)


def _make_batch(arrays, number, packed):
    pairs = arrays.pairs[arrays.splits[number] : arrays.splits[number + 1]]
    rows, source_width, target_width = tf.unstack(arrays.shapes[number], num=3)
    source, _ = _padded(arrays.source_ids, arrays.source_offsets, pairs, rows, source_width)
    target, lengths = _padded(arrays.target_ids, arrays.target_offsets, pairs, rows, target_width)
    columns = tf.range(target_width)
    filled = tf.expand_dims(tf.range(rows) < tf.size(pairs, tf.int64), 1)
    ends = tf.logical_and(tf.equal(columns, tf.expand_dims(lengths, 1)), filled)
    labels = tf.where(ends, EOS_ID, target)
    # The rows that hold no pair stay padding.
    begin = tf.where(filled, BOS_ID, PAD_ID)
    target = tf.concat([begin, target[:, :-1]], axis=1)
    inputs = {"source": source, "target": target}
    if packed:
        inputs["target"] = tf.where(tf.equal(target, EOS_ID), BOS_ID, target)
        inputs["source_segments"] = _segments(source)
        inputs["target_segments"] = _segments(labels)
    mask = tf.cast(tf.not_equal(labels, PAD_ID), tf.float32)
    return inputs, labels, mask / tf.reduce_sum(mask)


def _padded(ids, offsets, pairs, rows, width):
    """Returns the given rows as int32 `[rows, width]`, and the lengths of `rows` rows."""
    starts = tf.gather(offsets, pairs)
    lengths = tf.gather(offsets, pairs + 1) - starts
    empty = [[0, rows - tf.size(pairs, tf.int64)]]
    starts, lengths = tf.pad(starts, empty), tf.pad(lengths, empty)
    columns = tf.range(width)
    # Positions past a row's end read the next row, or the last id, and are masked.
    positions = tf.expand_dims(starts, 1) + columns
    gathered = tf.gather(ids, tf.minimum(positions, tf.size(ids, tf.int64) - 1))
    inside = columns < tf.expand_dims(lengths, 1)
    return tf.where(inside, tf.cast(gathered, tf.int32), PAD_ID), lengths


def _segments(ids):
    """Returns 1, 2, ... for what each EOS of a row ends, and 0 on padding."""
    ends = tf.cast(tf.equal(ids, EOS_ID), tf.int32)
    return tf.where(tf.equal(ids, PAD_ID), 0, 1 + tf.cumsum(ends, axis=1, exclusive=True))
