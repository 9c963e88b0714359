"""The order of pairs and batches: a function of (seed, epoch, index) in NumPy and in a graph.

A resumed training has no random state to load. With the module `tf`, the functions add operations
to a graph of TensorFlow, and return tensors.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_RANDOM_BITS = 40  # of a sort key


def arrange_pairs(groups, num_groups: int, seed: int | None, epoch, tf=None):
    """Returns the indices of the pairs, sorted by group, int32 `[pairs]`.

    The order within each group is random; without a seed, it is the order of the corpus.
    """

    # One group after the other: the keys of all pairs would take more memory than the rest.
    def arrange_group(group):
        if tf is None:
            numbers = np.flatnonzero(groups == group)
        else:
            numbers = tf.where(groups == tf.cast(group, groups.dtype))[:, 0]
        if seed is None:
            return numbers.astype(np.int32) if tf is None else tf.cast(numbers, tf.int32)
        order = _argsort(_random_bits(numbers, seed, 0, epoch, tf), tf)
        if tf is None:
            return numbers[order].astype(np.int32)
        return tf.cast(tf.gather(numbers, order), tf.int32)

    if tf is None:
        return np.concatenate([arrange_group(group) for group in range(num_groups)])
    arranged = tf.TensorArray(tf.int32, num_groups, infer_shape=False, element_shape=[None])
    _, arranged = tf.while_loop(
        lambda group, _: group < num_groups,
        lambda group, arrays: (group + 1, arrays.write(group, arrange_group(group))),
        (0, arranged),
        parallel_iterations=1,
    )
    return arranged.concat()


def shuffle_batches(num_batches: int, seed: int | None, epoch, tf=None):
    """Returns the numbers of the batches in a random order, int64 `[num_batches]`."""
    if seed is None:
        return np.arange(num_batches, dtype=np.int64)
    numbers = np.arange(num_batches, dtype=np.uint64)
    return _argsort(_random_bits(numbers, seed, 1, epoch, tf), tf)


def shuffle_corpus(size: int, seed: int, number: int, round_number: int) -> np.ndarray:
    """Returns the indices of a corpus in a random order, int64 `[size]`, for a round through it.

    `number` is that of the corpus in a mixture: each corpus, and each round, has another order.
    """
    numbers = np.arange(size, dtype=np.uint64)
    return _argsort(_random_bits(numbers, seed, 2 + number, round_number, None), None)


def _argsort(keys, tf):
    if tf is None:
        return np.argsort(keys, kind="stable")
    return tf.cast(tf.argsort(keys, stable=True), tf.int64)


def _random_bits(numbers, seed, stream, epoch, tf):
    """SplitMix64 (Steele et al., 2014, "Fast Splittable Pseudorandom Number Generators")."""
    # Arrays: NumPy warns where the product of scalars overflows, which is intended here.
    start = _scramble(np.array([seed], np.uint64) + np.array([stream], np.uint64) * _GOLDEN, np)
    if tf is None:
        numbers, bitwise = numbers.astype(np.uint64), np
        epoch = np.array([epoch], np.uint64)
    else:
        numbers, bitwise = tf.cast(numbers, tf.uint64), tf.bitwise
        epoch = tf.cast(epoch, tf.uint64)
    values = _scramble(_scramble(start + epoch * _GOLDEN, bitwise) + numbers * _GOLDEN, bitwise)
    values = bitwise.right_shift(values, np.uint64(64 - _RANDOM_BITS))
    return values.astype(np.int64) if tf is None else tf.cast(values, tf.int64)


def _scramble(values, bitwise):
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(30))) * _FIRST
    values = bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(27))) * _SECOND
    return bitwise.bitwise_xor(values, bitwise.right_shift(values, np.uint64(31)))
