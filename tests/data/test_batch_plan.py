"""Few shapes with little padding."""

import numpy as np
import pytest

from keras_transformer.data.batch_plan import (
    BatchShape,
    BatchSize,
    assign_shapes,
    choose_shapes,
)


def _lengths(num_pairs=20_000, seed=0):
    generator = np.random.default_rng(seed)
    source = generator.integers(2, 60, num_pairs)
    target = np.clip(source + generator.integers(-8, 9, num_pairs), 2, None)
    return source, target


def _padded(shapes, source, target):
    assigned = assign_shapes(shapes, source, target)
    widths = np.array([(shape.source_width, shape.target_width) for shape in shapes])
    return (widths[assigned] * [1, 2]).sum()  # a target position costs twice a source one


@pytest.mark.parametrize("max_shapes", [1, 2, 10, 24])
def test_every_pair_has_the_smallest_of_the_shapes_that_hold_it(max_shapes):
    source, target = _lengths()
    shapes = choose_shapes(source, target, BatchSize(1024, 8), max_shapes)
    assert 1 <= len(shapes) <= max_shapes
    widths = np.array([(shape.source_width, shape.target_width) for shape in shapes])
    fits = (source[:, None] <= widths[:, 0]) & (target[:, None] <= widths[:, 1])
    padded = widths @ [1, 2]  # a target position costs twice a source one
    least = np.where(fits, padded, np.iinfo(int).max).min(axis=1)
    np.testing.assert_array_equal(padded[assign_shapes(shapes, source, target)], least)


def test_more_shapes_pad_less_and_better_than_equal_steps():
    source, target = _lengths()
    padded = [
        _padded(choose_shapes(source, target, BatchSize(1024, 8), number), source, target)
        for number in (1, 4, 12, 24)
    ]
    assert padded == sorted(padded, reverse=True)
    # The same number of shapes as steps of the longer side.
    longer = np.maximum(source, target)
    steps = np.linspace(longer.min(), longer.max(), 25)[1:]
    uniform = 3 * np.ceil(steps[np.searchsorted(steps, longer)]).sum()
    assert padded[-1] < 0.98 * uniform


def test_two_clusters_get_their_two_shapes():
    lengths = np.repeat([5, 50], 1000), np.repeat([7, 20], 1000)
    expected = BatchShape(8, 50, 20), BatchShape(64, 5, 7)
    assert choose_shapes(*lengths, BatchSize(500, 8), 10) == expected


def test_small_corpora_have_fewer_shapes():
    source, target = _lengths(40)
    assert len(choose_shapes(source, target, BatchSize(10**6, 8), 24)) == 1


def test_pairs_that_fit_nowhere_are_marked():
    shapes = (BatchShape(8, 10, 10), BatchShape(8, 5, 10))
    assigned = assign_shapes(shapes, np.array([5, 6, 11, 3]), np.array([10, 1, 1, 11]))
    assert assigned.tolist() == [1, 0, 2, 2]


@pytest.mark.parametrize("size, widths, rows", [
    (BatchSize(400, 8), (10, 20), 16),
    (BatchSize(150, 8), (10, 20), 7),
    (BatchSize(150, 8, 2), (10, 20), 6),
    (BatchSize(150, 8, 4), (10, 20), 4),
    (BatchSize(19, 8), (10, 20), 1),
    (BatchSize(19, 8, 4), (10, 20), 4),
    (BatchSize(17, 4), (1, 1), 16),
])  # fmt: skip
def test_rows_are_rounded_down_to_the_multiple(size, widths, rows):
    assert size.rows(*widths) == rows
