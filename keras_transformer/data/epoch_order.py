"""The order of an epoch: arithmetic on (seed, epoch, index), the same in NumPy and in a graph.

No generator has a state to save or to share: a training that resumes, and every worker, knows the
order of any epoch. The numbers are those of SplitMix64 (Steele et al., 2014, "Fast Splittable
Pseudorandom Number Generators"). The functions compute with NumPy, or with TensorFlow if they get
its module as `tf`; then `groups` is a tensor and `epoch` an int64 scalar tensor.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Bits of a sort key of 63 bits; the bits above are enough for 8 million groups.
_RANDOM_BITS = 40
_GROUP_STEP = np.int64(1 << _RANDOM_BITS)


def arrange_pairs(groups, seed: int | None, epoch, tf=None):
    """Returns the indices of the pairs sorted by `groups`, both int64 `[pairs]`.

    The order within each group is random; without a seed, it is that of the corpus.
    """
    if seed is None:
        return _argsort(groups, tf)
    count = len(groups) if tf is None else tf.size(groups, tf.int64)
    return _argsort(groups * _GROUP_STEP + _random_bits(count, seed, 0, epoch, tf), tf)


def shuffle_batches(num_batches: int, seed: int | None, epoch, tf=None):
    """Returns the numbers of the batches in a random order, int64 `[num_batches]`."""
    if seed is None:
        return np.arange(num_batches, dtype=np.int64)
    return _argsort(_random_bits(num_batches, seed, 1, epoch, tf), tf)


def _argsort(keys, tf):
    if tf is None:
        return np.argsort(keys, kind="stable")
    return tf.cast(tf.argsort(keys, stable=True), tf.int64)


def _random_bits(count, seed, stream, epoch, tf):
    # Arrays: NumPy warns where the product of scalars overflows, which is intended here.
    start = _scramble(np.array([seed], np.uint64) + np.uint64(stream) * _GOLDEN, np)
    if tf is None:
        numbers, epoch, bitwise = np.arange(count, dtype=np.uint64), np.uint64([epoch]), np
    else:
        numbers, bitwise = tf.cast(tf.range(count, dtype=tf.int64), tf.uint64), tf.bitwise
        epoch = tf.cast(epoch, tf.uint64)
    values = _scramble(_scramble(start + epoch * _GOLDEN, bitwise) + numbers * _GOLDEN, bitwise)
    values = bitwise.right_shift(values, np.uint64(64 - _RANDOM_BITS))
    return values.astype(np.int64) if tf is None else tf.cast(values, tf.int64)


def _scramble(values, bitwise):
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(30))) * _FIRST
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(27))) * _SECOND
    return bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(31)))
