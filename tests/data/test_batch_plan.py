"""Few shapes with little padding; an order that is a function of seed, epoch and index."""

import numpy as np
import pytest

from keras_transformer.data.batch_plan import (
    BatchShape,
    BatchSize,
    arrange_pairs,
    assign_shapes,
    choose_shapes,
    shuffle_batches,
)


def _lengths(num_pairs=20_000, seed=0):
    generator = np.random.default_rng(seed)
    source = generator.integers(2, 60, num_pairs)
    target = np.clip(source + generator.integers(-8, 9, num_pairs), 2, None)
    return source, target


@pytest.mark.parametrize("max_shapes", [1, 2, 24])
def test_every_pair_has_the_smallest_of_the_shapes_that_hold_it(max_shapes):
    source, target = _lengths()
    shapes = choose_shapes(source, target, BatchSize(1024, 8), max_shapes)
    assert 1 <= len(shapes) <= max_shapes
    widths = np.array([(shape.source_width, shape.target_width) for shape in shapes])
    fits = (source[:, None] <= widths[:, 0]) & (target[:, None] <= widths[:, 1])
    padded = widths @ [1, 2]  # a target position costs twice a source one
    least = np.where(fits, padded, np.iinfo(int).max).min(axis=1)
    np.testing.assert_array_equal(padded[assign_shapes(shapes, source, target)], least)


def test_two_clusters_get_their_two_shapes():
    lengths = np.repeat([5, 50], 1000), np.repeat([7, 20], 1000)
    expected = BatchShape(8, 50, 20), BatchShape(64, 5, 7)
    assert choose_shapes(*lengths, BatchSize(500, 8), 10) == expected


@pytest.mark.parametrize("size, widths, rows", [
    (BatchSize(400, 8), (10, 20), 16),
    (BatchSize(150, 8), (10, 20), 7),
    (BatchSize(150, 8, 4), (10, 20), 4),
    (BatchSize(19, 8, 4), (10, 20), 4),
])  # fmt: skip
def test_rows_are_rounded_down_to_the_multiple(size, widths, rows):
    assert size.rows(*widths) == rows


MASK = (1 << 64) - 1


def splitmix64(state):
    """The reference implementation's next number, in Python's unbounded integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def test_the_order_is_that_of_splitmix64():
    golden, seed, epoch = 0x9E3779B97F4A7C15, 1234567, 89
    start = splitmix64((splitmix64((seed + golden) & MASK) + epoch * golden) & MASK)
    numbers = [splitmix64((start + index * golden) & MASK) >> 24 for index in range(50)]
    assert shuffle_batches(50, seed, epoch).tolist() == sorted(range(50), key=numbers.__getitem__)


def test_pairs_are_arranged_by_group_at_random_within_each():
    groups = np.random.default_rng(0).integers(0, 5, 20_000)
    arranged = arrange_pairs(groups, 5, seed=1, epoch=2)
    assert np.array_equal(np.sort(arranged), np.arange(20_000))
    assert np.array_equal(groups[arranged], np.sort(groups))
    for group in range(5):
        within = arranged[groups[arranged] == group]
        # Rank correlation of independent orders: its standard deviation is 1 / sqrt(n).
        correlation = np.corrcoef(within, np.arange(len(within)))[0, 1]
        assert abs(correlation) < 4 / np.sqrt(len(within))
