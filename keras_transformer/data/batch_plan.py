"""The plan that assigns the pairs of a corpus to batches."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.data.batch_shapes import BatchShape, BatchSize, assign_shapes


class BatchPlan(NamedTuple):
    """The batches of a corpus, the same in every epoch whatever the order of its pairs.

    An epoch arranges the pairs by `group`, in its own order within each group. Batch `i` takes the
    pairs at `places[splits[i]:splits[i + 1]]` of that arrangement. All are int64.
    """

    groups: np.ndarray  # [pairs], index of the shape that each pair was assigned to
    places: np.ndarray  # [pairs], every place of the arrangement once
    splits: np.ndarray  # [batches + 1]
    shapes: np.ndarray  # [batches, 3]: rows, source width and target width

    def __len__(self) -> int:
        return len(self.shapes)


def plan_batches(
    shapes: Sequence[BatchShape],
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    size: BatchSize,
) -> BatchPlan:
    """Returns a plan with every pair in exactly one batch.

    Pairs go to the cheapest shape that they fit in. The pairs that remain of a shape after its full
    batches are completed with pairs of the next smaller shapes. So only the last few batches are
    not full; their rows are filled up to a multiple of `row_multiple`. The shapes are those of
    `choose_shapes`, for this corpus or for another.
    """
    groups = assign_shapes(shapes, source_lengths, target_lengths)
    shapes = list(shapes)
    if len(groups) and groups.max() == len(shapes):
        # Shapes of another corpus, or of another epoch's split into subwords.
        unfit = groups == len(shapes)
        widths = int(source_lengths[unfit].max()), int(target_lengths[unfit].max())
        shapes.append(BatchShape(size.rows(*widths), *widths))
    ends = np.cumsum(np.bincount(groups, minlength=len(shapes)))
    waiting = np.split(np.arange(len(groups)), ends[:-1])
    batches, rest = _full_batches(shapes, waiting)
    batches += _last_batches(rest, ends, shapes, size)
    places = [places for places, _ in batches]
    return BatchPlan(
        groups.astype(np.int64),
        np.concatenate(places),
        np.cumsum([0, *map(len, places)]),
        np.array([shape for _, shape in batches], np.int64),
    )


def plan_equal_batches(num_pairs: int, shape: BatchShape) -> BatchPlan:
    """Returns a plan with batches of one shape, which every pair fits; the last may not be full."""
    num_batches = -(-num_pairs // shape.rows)
    return BatchPlan(
        np.zeros(num_pairs, np.int64),
        np.arange(num_pairs),
        np.minimum(np.arange(num_batches + 1) * shape.rows, num_pairs),
        np.tile(np.array(shape, np.int64), (num_batches, 1)),
    )


def _full_batches(shapes, waiting):
    """Returns full batches, the largest shape first, and the pairs that are not in one."""
    batches, rest = [], []
    descending = sorted(range(len(shapes)), key=lambda index: (sum(shapes[index][1:]), index))[::-1]
    for position, index in enumerate(descending):
        shape, places = shapes[index], waiting[index]
        full = len(places) - len(places) % shape.rows
        batches += [
            (places[start : start + shape.rows], shape) for start in range(0, full, shape.rows)
        ]
        parts = [places[full:]]
        if not len(parts[0]):
            continue
        missing = shape.rows - len(parts[0])
        for other in descending[position + 1 :]:
            if missing and _contains(shape, shapes[other]):
                available = waiting[other]
                taken = min(missing, len(available))
                parts.append(available[len(available) - taken :])
                waiting[other] = available[: len(available) - taken]
                missing -= taken
        places = np.concatenate(parts)
        if missing:
            rest.append(places)
        else:
            batches.append((places, shape))
    return batches, rest


def _last_batches(rest, ends, shapes, size):
    """Returns batches of the remaining pairs: the widest first, as many as fit each time."""
    batches = []
    places = np.concatenate(rest) if rest else np.zeros(0, np.int64)
    # The pair at a place changes with the epoch; the widths of its shape hold for all.
    widths = np.array([shape[1:] for shape in shapes])[np.searchsorted(ends, places, side="right")]
    order = np.lexsort((-widths[:, 0], -widths[:, 1]))
    places, widths = places[order], widths[order]
    while len(places):
        target_width = int(widths[0, 1])
        source_widths = np.maximum.accumulate(widths[: size.tokens, 0])
        widest = np.maximum(source_widths, target_width)
        fitting = np.arange(1, len(widest) + 1) * widest <= size.tokens
        count = max(1, int(fitting.sum()))
        if size.row_multiple <= count < len(places):
            count -= count % size.row_multiple
        source_width = int(source_widths[count - 1])
        most = size.rows(source_width, target_width)
        count = min(count, most)
        rows = min(most, -(-count // size.row_multiple) * size.row_multiple)
        wanted = BatchShape(rows, source_width, target_width)
        # A known shape that contains it is one shape fewer to compile.
        known = [shape for shape in shapes if shape.rows == rows and _contains(shape, wanted)]
        shape = min(known, key=lambda shape: shape[1] + shape[2], default=wanted)
        batches.append((places[:count], shape))
        places, widths = places[count:], widths[count:]
    return batches


def _contains(outer: BatchShape, inner: BatchShape) -> bool:
    return inner.source_width <= outer.source_width and inner.target_width <= outer.target_width
