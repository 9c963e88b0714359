"""Packing: several pairs in one row, so that almost no position is padding.

A packed corpus is an `EncodedCorpus` whose "pairs" are rows: several sources, each ending with EOS,
and their targets, separated by EOS. The pairs of a row are the same in every epoch.
"""

import numpy as np

from keras_transformer.data.batch_plan import arrange_pairs
from keras_transformer.data.encoded_corpus import EncodedCorpus, empty_aligned
from keras_transformer.data.tokenizer import EOS_ID

# Number of candidates for the next pair of a row; more of them save little more padding.
_WAITING = 64
# Shorter streams are more streams at once, but the last row of each stream stays half empty.
_PAIRS_PER_STREAM = 8192
_PAIRS_AT_ONCE = 8192


def balanced_widths(encoded: EncodedCorpus, width: int) -> tuple[int, int]:
    """Returns the widths of source and target in rows that leave little padding on either side.

    The side with more tokens has `width`. The other is narrower in proportion to its tokens, but
    holds its longest sentence. Its width is even, because some attention kernels need that.
    """
    lengths = np.stack([encoded.source_lengths, encoded.target_lengths])
    totals = lengths.sum(axis=1)
    widths = np.maximum(width * totals / totals.max(), lengths.max(axis=1))
    source_width, target_width = np.minimum(np.ceil(widths / 2) * 2, width).astype(int).tolist()
    return source_width, target_width


def pack_corpus(
    encoded: EncodedCorpus, widths: tuple[int, int], seed: int, drawn: np.ndarray | None = None
) -> EncodedCorpus:
    """Returns a corpus of rows. EOS ends every source, and every target but the last of a row.

    `widths` are the maximum numbers of source tokens and of labels in a row, EOS counted. `drawn`
    has the indices of the pairs to pack; None for all.
    """
    _check_packable(encoded, max(widths))
    drawn = np.arange(len(encoded)) if drawn is None else drawn
    # A corpus may be sorted, by length or by origin.
    pairs = drawn[arrange_pairs(np.zeros(len(drawn), np.int64), seed, 0)]
    lengths = np.stack([encoded.source_lengths[pairs], encoded.target_lengths[pairs]])
    rows = _choose_rows(lengths.astype(np.int32), widths)
    order = np.argsort(rows, kind="stable")
    pairs, rows = pairs[order], rows[order]
    ends_row = np.append(rows[1:] != rows[:-1], True)
    source, target = encoded.sides()
    return EncodedCorpus(
        *_joined(*source, pairs, ends_row, followed_by_eos=np.zeros_like(ends_row)),
        *_joined(*target, pairs, ends_row, followed_by_eos=~ends_row),
    )


def _check_packable(encoded, width):
    lengths = encoded.source_lengths, encoded.target_lengths
    pair = int(np.maximum(*lengths).argmax())
    source, target = (side[pair] for side in lengths)
    if max(source, target) > width:
        rule = f"A packed pair must have at most packed_width={width} tokens a side, EOS counted"
        received = f"{source} source and {target} target tokens in pair {pair}"
        raise ValueError(f"{rule}. Received: {received}")
    # EOS tells the segments of a row apart.
    num_ends = np.count_nonzero(encoded.source_ids[encoded.source_offsets[1:] - 1] == EOS_ID)
    num_eos = sum(np.count_nonzero(ids == EOS_ID) for ids, _ in encoded.sides())
    if not num_ends == num_eos == len(encoded):
        rule = "To be packed, every source must end with EOS, which must be nowhere else"
        received = f"{num_eos} of it in {len(encoded)} pairs, {num_ends} at the end of a source"
        raise ValueError(f"{rule}. Received: {received}")


def _choose_rows(lengths, widths):
    """Returns the index of the row of each pair, for lengths int32 `[2, pairs]`.

    Each stream of pairs fills one row after the other. A row gets the waiting pair after which the
    side with more room has the least room, until no waiting pair fits.
    """
    num_pairs = lengths.shape[1]
    num_streams = -(-num_pairs // _PAIRS_PER_STREAM)
    per_stream = -(-num_pairs // num_streams)
    streams = np.arange(num_streams)
    # A pair that fits nowhere stands for the missing pairs after the end of a stream.
    most = max(widths) + 1
    lengths = np.append(lengths, np.full((2, 1), most, np.int32), axis=1)
    current = streams * per_stream
    ends = np.minimum(current + per_stream, num_pairs)
    following = current + _WAITING
    waiting = current[:, None] + np.arange(_WAITING)  # [streams, waiting]
    waiting = np.where(waiting < ends[:, None], waiting, num_pairs)
    waiting_lengths = lengths[:, waiting]  # [2, streams, waiting]
    full = np.array(widths, np.int32)[:, None]
    room = np.repeat(full, num_streams, axis=1)
    rows = np.empty(num_pairs, np.int64)
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


def _joined(ids, offsets, pairs, ends_row, followed_by_eos):
    """Returns the ids of the pairs one after the other, and the offsets of the rows."""
    ends = np.cumsum(np.diff(offsets)[pairs] + followed_by_eos)
    joined = empty_aligned(int(ends[-1]), ids.dtype)
    first = 0
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        chunk = slice(start, start + _PAIRS_AT_ONCE)
        starts = np.append(first, ends[chunk][:-1])
        positions = np.arange(first, ends[chunk][-1])
        positions += np.repeat(offsets[pairs[chunk]] - starts, ends[chunk] - starts)
        # Positions of EOS get the first id of the next pair, or the last id: overwritten below.
        np.take(ids, positions, mode="clip", out=joined[first : ends[chunk][-1]])
        first = ends[chunk][-1]
    joined[ends[followed_by_eos] - 1] = EOS_ID
    return joined, np.append(0, ends[ends_row])
