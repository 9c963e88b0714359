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

    There are epochs from `first` on without end, or only this one without `repeat`.
    """
    corpus = [shared_tensor(array) for array in encoded.arrays()]
    plan = BatchPlan(*map(shared_tensor, plan))

    def arrange(epoch):
        return epoch, arrange_epoch(corpus, plan, seed, epoch, tf)

    # One epoch ahead, so that no step waits for an order.
    return _epoch_numbers(first, repeat).map(arrange).prefetch(1)


def loaded_epochs(load: Callable[[int], EpochArrays], first: int, repeat: bool) -> tf.data.Dataset:
    """Returns a dataset like `planned_epochs`, each loaded while the one before is used."""
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
    """Returns a dataset of the batches of `epochs`, as `make_batch` returns them.

    It begins with `first_batch` of `first_epoch`, the first of the epochs.
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
