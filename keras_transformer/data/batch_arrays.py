"""The arrays of an epoch and the batches that are cut from them, in NumPy or in a graph."""

from typing import NamedTuple

import numpy as np

from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.epoch_order import arrange_pairs, shuffle_batches
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID

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
    """Returns the arrays of an epoch of `EncodedCorpus.arrays()`; see `arrange_pairs`."""
    arranged = arrange_pairs(plan.groups, seed, epoch, tf)
    pairs = arranged[plan.places] if tf is None else tf.gather(arranged, plan.places)
    order = shuffle_batches(len(plan), seed, epoch, tf)
    return EpochArrays(*corpus, pairs, plan.splits, plan.shapes, order)


def make_batch(arrays: EpochArrays, number, packed: bool, tf=None) -> Batch:
    """Returns `(inputs, labels, weights)` of a batch, as `TokenBatches` describes them.

    With `packed`, rows have several segments, each of which EOS ends. `tf`: as in `arrange_pairs`.
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
    """Returns 1, 2, ... for the segments of a row, each of which EOS ends, and 0 on padding."""
    ends = xp.asarray(ids == EOS_ID, np.int32)
    ended_before = xp.cumsum(ends, axis=1, dtype=np.int32) - ends
    return xp.asarray(xp.where(ids == PAD_ID, 0, ended_before + 1), np.int32)
