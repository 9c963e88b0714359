"""Rows of one pair or, packed, of several, and the batches that are made of them.

The functions for batches work in NumPy or, if its module is passed as `tf`, add operations to a
graph.
"""

from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.batch_plan import BatchPlan, arrange_pairs, shuffle_batches
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID

# Number of candidates for the next pair of a row; more of them save little more padding.
_WAITING = 64
# Shorter streams are more streams at once, but the last row of each stream stays half empty.
_PAIRS_PER_STREAM = 8192
_READ_AT_ONCE = 2**22
# TensorFlow's kernels need memory that begins at a multiple of this number of bytes.
_ALIGNMENT = 64
Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]


class PackedCorpus(NamedTuple):
    """A corpus whose pairs are distributed over rows, the same ones in every epoch."""

    encoded: EncodedCorpus
    pairs: np.ndarray  # int32: row `i` has the pairs `pairs[splits[i]:splits[i + 1]]`
    splits: np.ndarray  # int64 [rows + 1]

    @property
    def num_rows(self) -> int:
        return len(self.splits) - 1


class CorpusArrays(NamedTuple):
    """The arrays or tensors of a corpus; without packing, the last two have no elements."""

    source_ids: np.ndarray  # uint16 or int32 [source tokens]
    source_offsets: np.ndarray  # int64 [pairs + 1]
    target_ids: np.ndarray  # uint16 or int32 [target tokens]
    target_offsets: np.ndarray  # int64 [pairs + 1]
    packed_pairs: np.ndarray  # int32 [pairs]
    packed_splits: np.ndarray  # int64 [rows + 1]


class EpochArrays(NamedTuple):
    """The arrays or tensors of the batches of an epoch."""

    rows: np.ndarray  # int32 [rows], indices of pairs or packed rows, in the order of their batches
    splits: np.ndarray  # int64 [batches + 1]: batch `i` has `rows[splits[i]:splits[i + 1]]`
    shapes: np.ndarray  # int64 [batches, 3]: rows, source width and target width
    order: np.ndarray  # int64 [batches], the order of the batches


def corpus_arrays(corpus: EncodedCorpus | PackedCorpus) -> CorpusArrays:
    """Returns the arrays of a corpus."""
    if isinstance(corpus, PackedCorpus):
        return CorpusArrays(*corpus.encoded.arrays(), corpus.pairs, corpus.splits)
    return CorpusArrays(*corpus.arrays(), np.zeros(0, np.int32), np.zeros(0, np.int64))


def arrange_epoch(plan: BatchPlan, seed: int | None, epoch, drawn=None, tf=None) -> EpochArrays:
    """Returns the arrays of an epoch, of the pairs `drawn`; None for all."""
    rows = arrange_pairs(plan.groups, plan.num_groups, seed, epoch, tf)
    rows = rows[plan.positions] if tf is None else tf.gather(rows, plan.positions)
    rows = rows if drawn is None else drawn[rows].astype(np.int32)
    order = shuffle_batches(len(plan.shapes), seed, epoch, tf)
    return EpochArrays(rows, plan.splits, plan.shapes, order)


def shared_tensor(array):
    """Returns a tensor of an array: in its memory, if TensorFlow can use it, otherwise a copy."""
    import tensorflow as tf

    flags = array.flags
    if array.ctypes.data % _ALIGNMENT or not (flags.writeable and flags.c_contiguous):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def make_batch(
    corpus: CorpusArrays,
    epoch: EpochArrays,
    number,
    packed: bool,
    tf=None,
    share: tuple[int, int] = (0, 1),
) -> Batch:
    """Returns `(inputs, labels, weights)` of a share of a batch, as `TokenBatches` describes them.

    Weights are those of the whole batch.
    """
    xp, arange = (np, np.arange) if tf is None else (tf.experimental.numpy, tf.range)
    first, end = epoch.splits[number], epoch.splits[number + 1]
    num_rows, source_width, target_width = (epoch.shapes[number, side] for side in range(3))
    num_rows = num_rows // share[1]
    row_numbers = share[0] * num_rows + arange(num_rows)
    filled = row_numbers < end - first
    all_rows = xp.take(epoch.rows, first + arange(end - first))
    num_labels = _count_labels(corpus, all_rows, packed, xp, tf)  # of the whole batch
    rows = xp.take(epoch.rows, first + row_numbers, mode="clip")
    sides: Any = corpus[:4]
    if packed:
        pairs, counts = _pairs_of_rows(corpus, rows, filled, xp, tf)
        sides = _join_pairs(corpus, pairs, counts, xp, tf)
        rows = arange(num_rows)  # `sides` now have one entry for each row.

    def padded(side, width):
        ids, offsets = side
        starts = xp.take(offsets, rows)
        lengths = xp.where(filled, xp.take(offsets, rows + 1) - starts, 0)
        columns = arange(width)
        # Positions past the end of a row read the next row, or the last id, and are masked.
        gathered = xp.take(ids, starts[:, None] + columns, mode="clip")
        return xp.where(columns < lengths[:, None], gathered, PAD_ID), lengths

    source, _ = padded(sides[:2], source_width)
    target, target_lengths = padded(sides[2:], target_width)
    ends = (arange(target_width) == target_lengths[:, None]) & filled[:, None]
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
    return inputs, labels, mask / xp.asarray(num_labels, np.float32)


def _count_labels(corpus, rows, packed, xp, tf):
    """Returns the number of labels of rows, with EOS."""
    pairs = _pairs_of_rows(corpus, rows, True, xp, tf)[0] if packed else rows
    lengths = xp.take(corpus.target_offsets, pairs + 1) - xp.take(corpus.target_offsets, pairs)
    return xp.sum(lengths + 1)


def _pairs_of_rows(corpus, rows, filled, xp, tf):
    """Returns the pairs of packed rows, and their number in each row."""
    starts = xp.take(corpus.packed_splits, rows)
    counts = xp.where(filled, xp.take(corpus.packed_splits, rows + 1) - starts, 0)
    return xp.take(corpus.packed_pairs, ranges(starts, counts, tf)), counts


def _join_pairs(corpus, pairs, counts, xp, tf):
    """Returns ids and offsets of rows, of the source and the target, with EOS between targets."""
    zero = np.zeros(1, np.int64)
    ends_of_rows = xp.cumsum(counts)
    numbers = ranges(xp.zeros_like(counts), counts, tf)  # of the pairs in each row
    is_followed = xp.concatenate([numbers[1:] > 0, np.zeros(1, bool)])
    joined = []
    for ids, offsets, separators in (
        (corpus.source_ids, corpus.source_offsets, xp.zeros_like(is_followed)),
        (corpus.target_ids, corpus.target_offsets, is_followed),
    ):
        starts = xp.take(offsets, pairs)
        lengths = xp.take(offsets, pairs + 1) - starts + xp.asarray(separators, np.int64)
        ends = xp.cumsum(lengths)
        # Separators get the first id of another pair, which EOS replaces below.
        tokens = xp.take(ids, ranges(starts, lengths, tf), mode="clip")
        # A row without pairs reads a token too.
        tokens = xp.concatenate([xp.asarray(tokens, np.int32), np.array([PAD_ID], np.int32)])
        positions = ends[separators] - 1
        if tf is None:
            tokens[positions] = EOS_ID
        else:
            marks = xp.full_like(positions, EOS_ID, np.int32)
            tokens = tf.tensor_scatter_nd_update(tokens, positions[:, None], marks)
        ends = xp.concatenate([zero, ends])
        joined += [tokens, xp.take(ends, xp.concatenate([zero, ends_of_rows]))]
    return joined


def ranges(starts, lengths, tf=None):
    """Returns the numbers `start, ..., start + length - 1` of all ranges, concatenated."""
    if tf is not None:
        return tf.ragged.range(starts, starts + lengths).flat_values
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)


def _segments(ids, xp):
    """Returns 1, 2, ... for the segments of a row, which end with EOS, and 0 on padding."""
    ends = xp.asarray(ids == EOS_ID, np.int32)
    ended_before = xp.cumsum(ends, axis=1, dtype=np.int32) - ends
    return xp.asarray(xp.where(ids == PAD_ID, 0, ended_before + 1), np.int32)


def balanced_widths(encoded: EncodedCorpus, width: int) -> tuple[int, int]:
    """Returns the widths of source and target in rows that leave little padding on either side.

    The side with more tokens has `width`. The other is narrower in proportion to its tokens, but
    holds its longest sentence. Its width is even, because some attention kernels need that.
    """
    lengths = encoded.source_lengths, encoded.target_lengths
    totals = np.array([side.sum() for side in lengths])
    widths = np.maximum(width * totals / totals.max(), [side.max() for side in lengths])
    source_width, target_width = np.minimum(np.ceil(widths / 2) * 2, width).astype(int).tolist()
    return source_width, target_width


def pack_corpus(
    encoded: EncodedCorpus, widths: tuple[int, int], seed: int, drawn: np.ndarray | None = None
) -> PackedCorpus:
    """Returns a corpus of rows.

    `widths` are the maximum numbers of source tokens and of labels in a row, EOS counted. `drawn`
    has the indices of the pairs to pack; None for all.
    """
    _check_packable(encoded, max(widths))
    num_pairs = len(encoded) if drawn is None else len(drawn)
    # A corpus may be sorted, by length or by origin.
    pairs = arrange_pairs(np.zeros(num_pairs, np.uint8), 1, seed, 0)
    pairs = pairs if drawn is None else drawn[pairs].astype(np.int32)
    rows = _choose_rows(encoded, pairs, widths)
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    ends = np.flatnonzero(np.append(rows[1:] != rows[:-1], True)) + 1
    return PackedCorpus(encoded, pairs[order], np.append(0, ends))


def _check_packable(encoded, width):
    lengths = encoded.source_lengths, encoded.target_lengths
    pair = int(np.maximum(*lengths).argmax())
    source, target = (side[pair] for side in lengths)
    if max(source, target) > width:
        rule = f"A packed pair must have at most packed_width={width} tokens a side, EOS counted"
        received = f"{source} source and {target} target tokens in pair {pair}"
        raise ValueError(f"{rule}. Received: {received}")
    # EOS tells the segments of a row apart.
    num_eos = sum(_count_eos(ids) for ids, _ in encoded.sides())
    ends = encoded.source_offsets[1:]
    num_ends = _count_eos(ends, lambda chunk: encoded.source_ids[chunk - 1])
    if not num_ends == num_eos == len(encoded):
        rule = "To be packed, every source must end with EOS, which must be nowhere else"
        received = f"{num_eos} of it in {len(encoded)} pairs, {num_ends} at the end of a source"
        raise ValueError(f"{rule}. Received: {received}")


def _count_eos(array, read=np.asarray):
    """Returns how often EOS is in the ids that `read` gives for parts of an array."""
    starts = range(0, len(array), _READ_AT_ONCE)
    parts = (read(array[start : start + _READ_AT_ONCE]) for start in starts)
    return sum(np.count_nonzero(ids == EOS_ID) for ids in parts)


def _choose_rows(encoded, pairs, widths):
    """Returns the index of the row of each of the pairs, int32 `[pairs]`; some rows stay empty.

    Each stream of pairs fills one row after the other. A row gets the waiting pair after which the
    side with more room has the least room, until no waiting pair fits.
    """
    num_pairs = len(pairs)
    num_streams = -(-num_pairs // _PAIRS_PER_STREAM)
    per_stream = -(-num_pairs // num_streams)
    streams = np.arange(num_streams)
    # A pair that fits nowhere stands for the missing pairs after the end of a stream.
    most = max(widths) + 1
    lengths = np.full((2, num_pairs + 1), most, np.int32)
    for side, of_all in enumerate((encoded.source_lengths, encoded.target_lengths)):
        np.take(of_all, pairs, out=lengths[side, :-1])
    current = streams * per_stream
    ends = np.minimum(current + per_stream, num_pairs)
    following = current + _WAITING
    waiting = current[:, None] + np.arange(_WAITING)  # [streams, waiting]
    waiting = np.where(waiting < ends[:, None], waiting, num_pairs)
    waiting_lengths = lengths[:, waiting]  # [2, streams, waiting]
    full = np.array(widths, np.int32)[:, None]
    room = np.repeat(full, num_streams, axis=1)
    rows = np.empty(num_pairs, np.int32)
    num_missing = num_pairs
    while num_missing:
        left = room[:, :, None] - waiting_lengths
        badness = np.where(np.minimum(*left) >= 0, np.maximum(*left), most)
        chosen = badness.argmin(axis=1)
        fits = badness[streams, chosen] < most
        current[~fits] += 1
        room[:, ~fits] = full
        filled, chosen = streams[fits], chosen[fits]
        rows[waiting[filled, chosen]] = current[filled]
        room[:, filled] -= waiting_lengths[:, filled, chosen]
        next_pairs = np.where(following[filled] < ends[filled], following[filled], num_pairs)
        waiting[filled, chosen] = next_pairs
        waiting_lengths[:, filled, chosen] = lengths[:, next_pairs]
        following[filled] += 1
        num_missing -= len(filled)
    return rows
