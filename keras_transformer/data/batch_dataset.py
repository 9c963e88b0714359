"""Batches as a `tf.data.Dataset`, cut by TensorFlow operations.

A `tf.data` thread that waits for Python while Python waits for that thread to end, which happens
when an iterator is deleted, waits forever. So no Python runs while a corpus is cut into batches.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from keras_transformer.data.batch_arrays import EpochArrays, arrange_epoch, make_batch
from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.encoded_corpus import EncodedCorpus, shared_tensor


def planned_epochs(encoded: EncodedCorpus, plan: BatchPlan, seed: int | None) -> Callable:
    """Returns a function from a number to that epoch of a corpus that is the same in all."""
    corpus = [shared_tensor(array) for array in encoded.arrays()]
    plan = BatchPlan(*map(shared_tensor, plan))
    return functools.partial(arrange_epoch, corpus, plan, seed, tf=tf)


def loaded_epochs(load: Callable[[int], EpochArrays]) -> Callable:
    """Returns a function from a number to that epoch, which a Python function loads."""
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
) -> tf.data.Dataset:
    """Returns a dataset of batches, as `make_batch` returns them.

    It has the rest of `first_epoch` from `first_batch` on, and with `repeat` all later epochs.
    """

    def batches(epoch, arrays):
        first = tf.where(tf.equal(epoch, first_epoch), tf.constant(first_batch, tf.int64), 0)
        numbers = tf.data.Dataset.range(first, tf.size(arrays.order, tf.int64))
        return numbers.map(
            lambda number: make_batch(arrays, arrays.order[number], packed, tf), tf.data.AUTOTUNE
        )

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max if repeat else first_epoch + 1)
    # One epoch ahead, so that no step waits for an order.
    return epochs.map(lambda epoch: (epoch, arrange(epoch))).prefetch(1).flat_map(batches)
