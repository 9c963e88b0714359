"""The order of an epoch is a function of seed, epoch and index, in NumPy and in a graph."""

import numpy as np
import pytest

from keras_transformer.data.batch_order import arrange_pairs, shuffle_batches

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


def test_each_seed_and_epoch_has_an_order_of_its_own():
    groups = np.zeros(100, np.int64)
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**31, 0), (0, 2**40)]
    orders = {tuple(arrange_pairs(groups, 1, *key)) for key in keys}
    assert len(orders | {tuple(shuffle_batches(100, *key)) for key in keys}) == 2 * len(keys)


@pytest.mark.parametrize("seed, epoch", [(0, 0), (7, 1), (2**31, 2**33)])
def test_graph_and_numpy_agree(seed, epoch):
    import tensorflow as tf

    groups = np.random.default_rng(seed).integers(0, 3, 5000)
    number = tf.constant(epoch, tf.int64)
    in_graph = tf.function(arrange_pairs)(tf.constant(groups), 4, seed, number, tf)
    np.testing.assert_array_equal(in_graph, arrange_pairs(groups, 4, seed, epoch))
    in_graph = tf.function(shuffle_batches)(700, seed, number, tf)
    np.testing.assert_array_equal(in_graph, shuffle_batches(700, seed, epoch))
