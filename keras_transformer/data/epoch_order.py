"""The order of an epoch: arithmetic on (seed, epoch, index), the same in NumPy and in a graph.

No generator has a state to save or to share: a training that resumes, and every worker, knows the
order of any epoch. The numbers are those of SplitMix64 (Steele et al., 2014, "Fast Splittable
Pseudorandom Number Generators").
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Of a sort key of 63 bits; what remains above is enough for 8 million groups.
_RANDOM_BITS = 40
_GROUP_STEP = np.int64(1 << _RANDOM_BITS)


def arrange_pairs(groups: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Returns the pairs sorted by group, in a random order within each.

    Args:
        groups: int64 `[pairs]`, from 0.
        seed: int.
        epoch: int.

    Returns:
        int64 `[pairs]`, indices of pairs.
    """
    numbers = np.arange(len(groups), dtype=np.uint64)
    start = _stream_start(seed, 0) + np.array([epoch], np.uint64) * _GOLDEN
    random = _random_bits(numbers, start, np).astype(np.int64)
    return np.argsort(groups * _GROUP_STEP + random, kind="stable")


def shuffle_batches(num_batches: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the numbers of the batches in a random order.

    Args:
        num_batches: int.
        seed: int.
        epoch: int.

    Returns:
        int64 `[num_batches]`.
    """
    numbers = np.arange(num_batches, dtype=np.uint64)
    start = _stream_start(seed, 1) + np.array([epoch], np.uint64) * _GOLDEN
    return np.argsort(_random_bits(numbers, start, np), kind="stable")


def arrange_pairs_in_graph(groups, seed: int, epoch):
    """`arrange_pairs` as TensorFlow operations.

    Args:
        groups: int64 tensor `[pairs]`.
        seed: int.
        epoch: int64 tensor without dimensions.

    Returns:
        int64 tensor `[pairs]`.
    """
    import tensorflow as tf

    numbers = tf.range(tf.size(groups, tf.int64))
    random = _random_bits_in_graph(numbers, seed, 0, epoch)
    return _argsort(groups * _GROUP_STEP + random)


def shuffle_batches_in_graph(num_batches: int, seed: int, epoch):
    """`shuffle_batches` as TensorFlow operations.

    Args:
        num_batches: int.
        seed: int.
        epoch: int64 tensor without dimensions.

    Returns:
        int64 tensor `[num_batches]`.
    """
    import tensorflow as tf

    numbers = tf.range(num_batches, dtype=tf.int64)
    return _argsort(_random_bits_in_graph(numbers, seed, 1, epoch))


def _random_bits_in_graph(numbers, seed, stream, epoch):
    import tensorflow as tf

    start = _stream_start(seed, stream) + tf.cast(epoch, tf.uint64) * _GOLDEN
    return tf.cast(_random_bits(tf.cast(numbers, tf.uint64), start, tf.bitwise), tf.int64)


def _argsort(keys):
    import tensorflow as tf

    return tf.cast(tf.argsort(keys, stable=True), tf.int64)


def _stream_start(seed, stream):
    # An array: NumPy warns where the product of scalars overflows, as it shall here.
    return _scramble(np.array([seed], np.uint64) + np.uint64(stream) * _GOLDEN, np)


def _random_bits(numbers, start, bitwise):
    """Bits of a stream for each number; `bitwise` has the operations, of NumPy or TensorFlow."""
    values = _scramble(_scramble(start, bitwise) + numbers * _GOLDEN, bitwise)
    return bitwise.right_shift(values, np.uint64(64 - _RANDOM_BITS))


def _scramble(values, bitwise):
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(30))) * _FIRST
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(27))) * _SECOND
    return bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(31)))
