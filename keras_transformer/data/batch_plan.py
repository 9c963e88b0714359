"""Which pairs form which batch in one epoch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.data.batch_shapes import BatchShape, assign_shapes, rows_for


class PlannedBatch(NamedTuple):
    """Pairs (int64 `[at most shape.rows]`, indices in the corpus) and the shape they are put in."""

    pairs: np.ndarray
    shape: BatchShape


def plan_batches(
    shapes: Sequence[BatchShape],
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    tokens_per_batch: int,
    row_multiple: int,
    generator: np.random.Generator | None,
) -> list[PlannedBatch]:
    """Puts every pair in exactly one batch.

    Pairs go to the cheapest shape that they fit in. What is left of a shape after its full batches
    is completed with pairs of the next smaller shapes, so only a few last batches are not full;
    those have rows filled up to a multiple of `row_multiple`. How many batches there are, and
    of which shapes, depends on the lengths alone, not on the generator.

    Args:
        shapes: as `choose_shapes` gives them, of this corpus or of another.
        source_lengths: int `[pairs]`.
        target_lengths: int `[pairs]`.
        tokens_per_batch: upper bound of rows * width, for each side.
        row_multiple: rows are a multiple of this number where so many fit.
        generator: shuffles pairs and batches; `None` keeps the order of the corpus in each shape.

    Returns:
        list of `PlannedBatch`.
    """
    order = np.arange(len(source_lengths))
    if generator is not None:
        generator.shuffle(order)
    assigned = assign_shapes(shapes, source_lengths, target_lengths)
    shapes = list(shapes)
    if len(order) and assigned.max() == len(shapes):
        # Shapes of another corpus, or of another epoch's split into subwords.
        unfit = assigned == len(shapes)
        widths = int(source_lengths[unfit].max()), int(target_lengths[unfit].max())
        shapes.append(BatchShape(rows_for(*widths, tokens_per_batch, row_multiple), *widths))
    by_shape = order[np.argsort(assigned[order], kind="stable")]
    ends = np.cumsum(np.bincount(assigned, minlength=len(shapes)))
    waiting = np.split(by_shape, ends[:-1])
    batches, rest = _full_batches(shapes, waiting)
    batches += _last_batches(
        rest, source_lengths, target_lengths, shapes, tokens_per_batch, row_multiple
    )
    if generator is not None:
        generator.shuffle(batches)
    return batches


def _full_batches(shapes, waiting):
    """Cuts full batches, the largest shape first; returns them and what could not be completed."""
    batches, rest = [], []
    area = [(shape.source_width + shape.target_width, index) for index, shape in enumerate(shapes)]
    descending = [index for _, index in sorted(area, reverse=True)]
    for place, index in enumerate(descending):
        shape, pairs = shapes[index], waiting[index]
        full = len(pairs) - len(pairs) % shape.rows
        batches += [
            PlannedBatch(pairs[start : start + shape.rows], shape)
            for start in range(0, full, shape.rows)
        ]
        parts = [pairs[full:]]
        if not len(parts[0]):
            continue
        missing = shape.rows - len(parts[0])
        for other in descending[place + 1 :]:
            if missing and _contains(shape, shapes[other]):
                available = waiting[other]
                taken = min(missing, len(available))
                parts.append(available[len(available) - taken :])
                waiting[other] = available[: len(available) - taken]
                missing -= taken
        pairs = np.concatenate(parts)
        if missing:
            rest.append(pairs)
        else:
            batches.append(PlannedBatch(pairs, shape))
    return batches, rest


def _last_batches(rest, source_lengths, target_lengths, shapes, tokens_per_batch, row_multiple):
    """Batches of the few pairs that fill no shape: longest first, as many as fit each time."""
    batches = []
    pairs = np.concatenate(rest) if rest else np.zeros(0, np.int64)
    order = np.lexsort((-source_lengths[pairs], -target_lengths[pairs]))
    pairs = pairs[order]
    while len(pairs):
        target_width = int(target_lengths[pairs[0]])
        source_widths = np.maximum.accumulate(source_lengths[pairs[:tokens_per_batch]])
        widths = np.maximum(source_widths, target_width)
        fitting = np.arange(1, len(widths) + 1) * widths <= tokens_per_batch
        count = max(1, int(fitting.sum()))
        if row_multiple <= count < len(pairs):
            count -= count % row_multiple
        source_width = int(source_widths[count - 1])
        most = rows_for(source_width, target_width, tokens_per_batch, row_multiple)
        count = min(count, most)
        rows = min(most, -(-count // row_multiple) * row_multiple)
        shape = _cheapest_known(BatchShape(rows, source_width, target_width), shapes)
        batches.append(PlannedBatch(pairs[:count], shape))
        pairs = pairs[count:]
    return batches


def _cheapest_known(wanted: BatchShape, shapes) -> BatchShape:
    """Returns the smallest known shape that has exactly these rows and contains `wanted`, if any:
    one shape fewer to compile."""
    fitting = [shape for shape in shapes if shape.rows == wanted.rows and _contains(shape, wanted)]
    return min(fitting, key=lambda shape: shape[1] + shape[2], default=wanted)


def _contains(outer: BatchShape, inner: BatchShape) -> bool:
    return inner.source_width <= outer.source_width and inner.target_width <= outer.target_width
