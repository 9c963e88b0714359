"""Batches as a `tf.data.Dataset`, cut by TensorFlow operations.

A `tf.data` thread that waits for Python while Python waits for that thread to end, which happens
when an iterator is deleted, waits forever. So no Python runs while a corpus is cut into batches.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.data.aligned_arrays import shared_tensor
from keras_transformer.data.batch_arrays import EpochArrays, arrange_epoch, make_batch
from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.encoded_corpus import EncodedCorpus


def planned_epochs(
    encoded: EncodedCorpus, plan: BatchPlan, seed: int | None, first: int, repeat: bool
) -> tf.data.Dataset:
    """Returns a dataset of (number, `EpochArrays`) of a corpus that is the same in each epoch.

    Args:
        encoded: the corpus.
        plan: its plan.
        seed: of the order; None for the order of the corpus.
        first: int, number of the first epoch.
        repeat: whether there are epochs without end, or only this one.
    """
    corpus = [shared_tensor(array) for array in encoded.arrays()]
    plan = BatchPlan(*map(shared_tensor, plan))

    def arrange(epoch):
        return epoch, arrange_epoch(corpus, plan, seed, epoch, tf)

    # One epoch ahead, so that no step waits for an order.
    return _epoch_numbers(first, repeat).map(arrange).prefetch(1)


def loaded_epochs(load: Callable[[int], EpochArrays], first: int, repeat: bool) -> tf.data.Dataset:
    """Returns a dataset of (number, `EpochArrays`), each made while the one before is used.

    Args:
        load: Python function from the number of an epoch to its `EpochArrays`.
        first, repeat: as in `planned_epochs`.
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
    """Returns a dataset of `(inputs, labels, weights)`, as `TokenBatches` describes them.

    Args:
        epochs: of `planned_epochs` or `loaded_epochs`.
        first_epoch: int, number of the first of them.
        first_batch: int, number of batches of that epoch to leave out.
        packed: whether rows have several segments, each of which EOS ends.
    """

    def batches(epoch, arrays):
        first = tf.where(tf.equal(epoch, first_epoch), tf.constant(first_batch, tf.int64), 0)
        numbers = tf.data.Dataset.range(first, tf.size(arrays.order, tf.int64))
        return numbers.map(
            lambda number: make_batch(arrays, arrays.order[number], packed, tf), tf.data.AUTOTUNE
        )

    return epochs.flat_map(batches)


def _epoch_numbers(first, repeat):
    return tf.data.Dataset.range(first, tf.int64.max if repeat else first + 1)
