"""Batches as NumPy arrays; `batch_dataset` makes the same ones as TensorFlow operations."""

import numpy as np

from keras_transformer.data.batch_plan import EpochArrays
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID

Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]


def make_batch(arrays: EpochArrays, number: int, packed: bool) -> Batch:
    """Returns a batch of an epoch.

    Args:
        arrays: the epoch.
        number: of the batch.
        packed: whether rows have several segments, each of which EOS ends.

    Returns:
        `(inputs, labels, weights)`, as `TokenBatches` describes them.
    """
    pairs = arrays.pairs[arrays.splits[number] : arrays.splits[number + 1]]
    rows, source_width, target_width = arrays.shapes[number]
    source, _ = _padded(arrays.source_ids, arrays.source_offsets, pairs, rows, source_width)
    labels, lengths = _padded(arrays.target_ids, arrays.target_offsets, pairs, rows, target_width)
    target = np.empty_like(labels)
    target[:, 0] = BOS_ID
    target[:, 1:] = labels[:, :-1]
    target[len(pairs) :] = PAD_ID
    labels[np.arange(len(pairs)), lengths] = EOS_ID
    inputs = {"source": source, "target": target}
    if packed:
        target[target == EOS_ID] = BOS_ID
        inputs["source_segments"] = _segments(source)
        inputs["target_segments"] = _segments(labels)
    mask = labels != PAD_ID
    weights = mask.astype(np.float32) / np.float32(mask.sum())
    return inputs, labels, weights


def _padded(ids, offsets, pairs, rows, width):
    """Returns the given rows as int32 `[rows, width]`, and their lengths."""
    starts = offsets[pairs]
    lengths = offsets[pairs + 1] - starts
    columns = np.arange(width)
    inside = columns < lengths[:, None]
    padded = np.full((rows, width), PAD_ID, np.int32)
    # Positions past a row's end read the next row, or the last id, and are masked.
    gathered = np.take(ids, starts[:, None] + columns, mode="clip")
    np.copyto(padded[: len(pairs)], gathered, where=inside)
    return padded, lengths


def _segments(ids):
    """Returns 1, 2, ... for what each EOS of a row ends, and 0 on padding."""
    ends = ids == EOS_ID
    ended_before = np.cumsum(ends, axis=1, dtype=np.int32) - ends
    return np.where(ids == PAD_ID, np.int32(0), ended_before + np.int32(1))
