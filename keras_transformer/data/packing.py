"""Packing: several pairs in one row, so that almost no position is padding."""

from typing import NamedTuple

import numpy as np

from keras_transformer.data.batch_order import arrange_pairs
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.tokenizer import EOS_ID

# Number of candidates for the next pair of a row; more of them save little more padding.
_WAITING = 64
# Shorter streams are more streams at once, but the last row of each stream stays half empty.
_PAIRS_PER_STREAM = 8192
_READ_AT_ONCE = 2**22


class PackedCorpus(NamedTuple):
    """A corpus whose pairs are distributed over rows, the same ones in every epoch."""

    encoded: EncodedCorpus
    pairs: np.ndarray  # int32: row `i` has the pairs `pairs[splits[i]:splits[i + 1]]`
    splits: np.ndarray  # int64 [rows + 1]

    @property
    def num_rows(self) -> int:
        return len(self.splits) - 1


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
