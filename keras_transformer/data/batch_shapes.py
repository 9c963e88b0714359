"""A small set of batch shapes that fits the lengths of a corpus with little padding.

Every new shape costs a compilation or a trace, and every padded position costs work. So the shapes
are chosen from the lengths: the rectangle of all (source length, target length) is cut in two where
that saves most padding, repeatedly, and each part is padded to its own maximum lengths.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# A padded target position costs about twice a source one: two attentions and the softmax.
_TARGET_COST = 2
# Minimum number of batches of a shape: with fewer, completing them costs what the shape saves.
_LEAST_BATCHES = 0.25


class BatchShape(NamedTuple):
    """Rows and padded lengths of a batch: `[rows, source_width]` and `[rows, target_width]`.

    Attributes:
        rows: number of sentence pairs.
        source_width: padded length of the source.
        target_width: padded length of the target.

    Example:

    >>> shape = keras_transformer.data.BatchShape(rows=64, source_width=12, target_width=16)
    >>> shape.rows * shape.target_width
    1024
    """

    rows: int
    source_width: int
    target_width: int


class BatchSize(NamedTuple):
    """The limits of a batch's size."""

    tokens: int  # upper bound of rows * width, for each side
    row_multiple: int  # rows are a multiple of this number if that many fit
    # Rows are always a multiple of this number, even if a batch of very long sentences is larger
    # than `tokens` then.
    num_replicas: int = 1

    def rows(self, source_width: int, target_width: int) -> int:
        """Returns the number of rows of these widths, at least `num_replicas`."""
        rows = self.tokens // max(source_width, target_width)
        multiple = self.row_multiple if rows >= self.row_multiple else self.num_replicas
        return max(self.num_replicas, rows - rows % multiple)


def choose_shapes(
    source_lengths: np.ndarray, target_lengths: np.ndarray, size: BatchSize, max_shapes: int
) -> tuple[BatchShape, ...]:
    """Returns the shapes for a corpus, the most expensive first; every pair fits in one of them.

    They depend on the lengths of the pairs, at least one, only. A cut that would leave less than a
    quarter of a batch on a side is not made, so a small corpus has fewer shapes.
    """
    # One number for each pair of lengths: `np.unique` takes ten times longer for rows.
    base = int(target_lengths.max()) + 1
    keys, counts = np.unique(source_lengths * base + target_lengths, return_counts=True)
    lengths = np.stack(np.divmod(keys, base), axis=1)
    regions = [(lengths, counts)]
    cuts = [_best_cut(lengths, counts, size.tokens)]
    while len(regions) < max_shapes:
        best = max(range(len(regions)), key=lambda region: cuts[region][0])
        saving, side, position = cuts[best]
        if saving <= 0:
            break
        lengths, counts = regions[best]
        low = lengths[:, side] <= position
        regions[best] = (lengths[low], counts[low])
        regions.append((lengths[~low], counts[~low]))
        cuts[best] = _best_cut(*regions[best], size.tokens)
        cuts.append(_best_cut(*regions[-1], size.tokens))
    widths = {tuple(lengths.max(axis=0).tolist()) for lengths, _ in regions}
    shapes = [BatchShape(size.rows(*pair), *pair) for pair in widths]
    return tuple(sorted(shapes, key=lambda shape: (-_padded_cost(*shape[1:]), shape)))


def _best_cut(lengths, counts, tokens_per_batch) -> tuple[int, int, int]:
    """Returns (padding saved, side, last length of the lower part) of the best cut, or saving 0."""
    best = (0, 0, 0)
    least = _LEAST_BATCHES * tokens_per_batch
    whole = counts.sum() * _padded_cost(*lengths.max(axis=0))
    for side in (0, 1):
        order = np.argsort(lengths[:, side], kind="stable")
        along, across = lengths[order, side], lengths[order, 1 - side]
        below = np.cumsum(counts[order])[:-1]
        above = counts.sum() - below
        low = (along[:-1], np.maximum.accumulate(across)[:-1])
        high = (along[-1], np.maximum.accumulate(across[::-1])[::-1][1:])
        cost = below * _padded_cost(*low[:: 1 - 2 * side])
        cost = cost + above * _padded_cost(*high[:: 1 - 2 * side])
        allowed = (
            (along[:-1] < along[1:])
            & (below * np.maximum(*low) >= least)
            & (above * np.maximum(*high) >= least)
        )
        if allowed.any():
            cost = np.where(allowed, cost, whole)
            position = int(cost.argmin())
            best = max(best, (int(whole - cost[position]), side, int(along[position])))
    return best


def _padded_cost(source_width, target_width):
    return source_width + _TARGET_COST * target_width


def assign_shapes(
    shapes: Sequence[BatchShape], source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """Returns the index of the cheapest shape that each pair fits in, int32 `[pairs]`.

    It is `len(shapes)` where a pair fits in none. The most expensive of the shapes is first.
    """
    assigned = np.full(len(source_lengths), len(shapes), np.int32)
    for index, shape in enumerate(shapes):
        fits = (source_lengths <= shape.source_width) & (target_lengths <= shape.target_width)
        assigned[fits] = index
    return assigned
