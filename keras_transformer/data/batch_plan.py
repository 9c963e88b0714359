"""A plan of batches: a few shapes with little padding, the batch of each pair, and their order.

The arrays have the smallest dtypes that fit: a corpus may have 40 million pairs. The order is a
function of (seed, epoch, index): a resumed training has no random state to load. With the module
`tf`, functions add operations to a graph of TensorFlow, and return tensors.
"""

from typing import NamedTuple

import numpy as np

# A padded target position costs about twice a source one: two attentions and the softmax.
_TARGET_COST = 2
# Minimum number of batches of a shape: with fewer, filling them up costs what the shape saves.
_LEAST_BATCHES = 0.25
_PAIRS_AT_ONCE = 2**20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_RANDOM_BITS = 40  # of a sort key


class BatchShape(NamedTuple):
    """Rows and padded lengths of a batch: `[rows, source_width]` and `[rows, target_width]`.

    Attributes:
        rows: Number of sentence pairs.
        source_width, target_width: Padded lengths of the source and of the target.

    Example:

    >>> shape = keras_transformer.data.BatchShape(rows=64, source_width=12, target_width=16)
    >>> shape.rows * shape.target_width
    1024
    """

    rows: int
    source_width: int
    target_width: int


class BatchSize(NamedTuple):
    """The limits of a batch's size, arguments of `TokenBatches`."""

    tokens: int  # upper bound of rows * width, for each side
    row_multiple: int
    num_replicas: int = 1

    def rows(self, source_width: int, target_width: int) -> int:
        """Returns the number of rows of these widths, at least `num_replicas`."""
        rows = self.tokens // max(source_width, target_width)
        multiple = self.row_multiple if rows >= self.row_multiple else self.num_replicas
        return max(self.num_replicas, rows - rows % multiple)


def choose_shapes(source_lengths, target_lengths, size, max_shapes) -> tuple[BatchShape, ...]:
    """Returns the shapes for a corpus, the most expensive first; every pair fits in one of them.

    The rectangle of all (source length, target length) pairs is repeatedly cut in two where that
    saves most padding, and each half is padded to its own maximum lengths. No cut leaves less than
    a quarter of a batch in a half, so a small corpus has fewer shapes.
    """

    def region(lengths, counts):
        return lengths, counts, _best_cut(lengths, counts, size.tokens)

    regions = [region(*_count_lengths(source_lengths, target_lengths))]
    while len(regions) < max_shapes:
        best = max(range(len(regions)), key=lambda number: regions[number][2][0])
        lengths, counts, (saving, side, position) = regions[best]
        if saving <= 0:
            break
        low = lengths[:, side] <= position
        regions[best] = region(lengths[low], counts[low])
        regions.append(region(lengths[~low], counts[~low]))
    widths = {tuple(lengths.max(axis=0).tolist()) for lengths, *_ in regions}
    shapes = [BatchShape(size.rows(*pair), *pair) for pair in widths]
    return tuple(sorted(shapes, key=lambda shape: (-_padded_cost(*shape[1:]), shape)))


def _count_lengths(source_lengths, target_lengths) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different pairs of lengths, `[n, 2]`, and how often each occurs."""
    # One number for each pair of lengths: `np.unique` takes ten times longer for rows.
    base = int(target_lengths.max()) + 1
    keys, counts = np.zeros((2, 0), np.int64)
    for start in range(0, len(source_lengths), _PAIRS_AT_ONCE):
        chunk = slice(start, start + _PAIRS_AT_ONCE)
        found = source_lengths[chunk].astype(np.int64) * base + target_lengths[chunk]
        found, numbers = np.unique(found, return_counts=True)
        keys, where = np.unique(np.append(keys, found), return_inverse=True)
        counts = np.bincount(where, np.append(counts, numbers)).astype(np.int64)
    return np.stack(np.divmod(keys, base), axis=1), counts


def _best_cut(lengths, counts, tokens_per_batch):
    """Returns (padding saved, side, last length of the lower half) of the best cut, or zeros."""
    best = (0, 0, 0)
    least = _LEAST_BATCHES * tokens_per_batch
    whole = counts.sum() * _padded_cost(*lengths.max(axis=0))
    for side in (0, 1):
        order = np.argsort(lengths[:, side], kind="stable")
        widths, below = lengths[order], np.cumsum(counts[order])[:-1]
        above = counts.sum() - below
        low = np.maximum.accumulate(widths)[:-1]  # [cuts, 2]: widths of the lower half
        high = np.maximum.accumulate(widths[::-1])[::-1][1:]
        cost = below * _padded_cost(*low.T) + above * _padded_cost(*high.T)
        allowed = widths[:-1, side] < widths[1:, side]
        allowed &= (below * low.max(axis=1) >= least) & (above * high.max(axis=1) >= least)
        if allowed.any():
            cost = np.where(allowed, cost, whole)
            position = int(cost.argmin())
            best = max(best, (int(whole - cost[position]), side, int(widths[position, side])))
    return best


def _padded_cost(source_width, target_width):
    return source_width + _TARGET_COST * target_width


def assign_shapes(shapes, source_lengths, target_lengths) -> np.ndarray:
    """Returns the index of the cheapest (last) shape that each pair fits in, `[pairs]`.

    It is `len(shapes)` for a pair that fits in none.
    """
    dtype = np.min_scalar_type(len(shapes))
    assigned = np.full(len(source_lengths), len(shapes), dtype)
    for index, shape in enumerate(shapes):
        fits = (source_lengths <= shape.source_width) & (target_lengths <= shape.target_width)
        assigned[fits] = index
    return assigned


class BatchPlan(NamedTuple):
    """The batches of a corpus, the same in every epoch whatever the order of its pairs.

    Each epoch sorts the pairs by `groups`, shuffled within each group. Batch `i` has the pairs at
    `positions[splits[i]:splits[i + 1]]` of the sorted pairs.
    """

    groups: np.ndarray  # [pairs], index of the shape of each pair
    num_groups: int
    positions: np.ndarray  # int32 [pairs], every position in the sorted pairs once
    splits: np.ndarray  # int64 [batches + 1]
    shapes: np.ndarray  # int64 [batches, 3]: rows, source width and target width


def plan_batches(shapes, source_lengths, target_lengths, size: BatchSize) -> BatchPlan:
    """Returns a plan with every pair in exactly one batch.

    Each pair is assigned to the cheapest of `shapes` (of this or of another corpus) that it fits
    in. If the last batch of a shape is not full, it gets pairs of the next smaller shapes. So only
    the last few batches are not full; they get padding rows up to a multiple of `row_multiple`.
    """
    groups = assign_shapes(shapes, source_lengths, target_lengths)
    shapes = list(shapes)
    if len(groups) and groups.max() == len(shapes):
        # Shapes of another corpus, or of another epoch's split into subwords.
        unfit = groups == len(shapes)
        widths = int(source_lengths[unfit].max()), int(target_lengths[unfit].max())
        shapes.append(BatchShape(size.rows(*widths), *widths))
    ends = np.cumsum(np.bincount(groups, minlength=len(shapes)))
    waiting = np.split(np.arange(len(groups), dtype=np.int32), ends[:-1])
    batches, rest = _full_batches(shapes, waiting)
    batches += _last_batches(rest, ends, shapes, size)
    positions = [positions for positions, _ in batches]
    return BatchPlan(
        groups,
        len(shapes),
        np.concatenate(positions),
        np.cumsum([0, *map(len, positions)]),
        np.array([shape for _, shape in batches], np.int64),
    )


def plan_equal_batches(num_rows: int, shape: BatchShape) -> BatchPlan:
    """Returns a plan with batches of packed rows, all of one shape; the last may not be full."""
    num_batches = -(-num_rows // shape.rows)
    return BatchPlan(
        np.zeros(num_rows, np.uint8),
        1,
        np.arange(num_rows, dtype=np.int32),
        np.minimum(np.arange(num_batches + 1) * shape.rows, num_rows),
        np.tile(np.array(shape, np.int64), (num_batches, 1)),
    )


def _full_batches(shapes, waiting):
    """Returns full batches, the largest shape first, and the pairs that are not in one."""
    batches, rest = [], []
    descending = sorted(range(len(shapes)), key=lambda index: (sum(shapes[index][1:]), index))[::-1]
    for position, index in enumerate(descending):
        shape, positions = shapes[index], waiting[index]
        full = len(positions) - len(positions) % shape.rows
        batches += [(chunk, shape) for chunk in positions[:full].reshape(-1, shape.rows)]
        chunks = [positions[full:]]
        if not len(chunks[0]):
            continue
        missing = shape.rows - len(chunks[0])
        for other in descending[position + 1 :]:
            if missing and _contains(shape, shapes[other]):
                available = waiting[other]
                taken = min(missing, len(available))
                chunks.append(available[len(available) - taken :])
                waiting[other] = available[: len(available) - taken]
                missing -= taken
        positions = np.concatenate(chunks)
        if missing:
            rest.append(positions)
        else:
            batches.append((positions, shape))
    return batches, rest


def _last_batches(rest, ends, shapes, size):
    """Returns batches of the remaining pairs: the widest first, as many as fit each time."""
    batches = []
    positions = np.concatenate(rest) if rest else np.zeros(0, np.int32)
    # The pair at a position changes with the epoch, but always fits the widths of its shape.
    shape_numbers = np.searchsorted(ends, positions, side="right")
    widths = np.array(shapes)[shape_numbers, 1:]
    order = np.lexsort((-widths[:, 0], -widths[:, 1]))
    positions, widths = positions[order], widths[order]
    while len(positions):
        target_width = int(widths[0, 1])
        source_widths = np.maximum.accumulate(widths[: size.tokens, 0])
        widest = np.maximum(source_widths, target_width)
        fitting = np.arange(1, len(widest) + 1) * widest <= size.tokens
        count = max(1, int(fitting.sum()))
        if size.row_multiple <= count < len(positions):
            count -= count % size.row_multiple
        source_width = int(source_widths[count - 1])
        most = size.rows(source_width, target_width)
        count = min(count, most)
        rows = min(most, -(-count // size.row_multiple) * size.row_multiple)
        wanted = BatchShape(rows, source_width, target_width)
        # A known shape that contains it is one shape fewer to compile.
        known = [shape for shape in shapes if shape.rows == rows and _contains(shape, wanted)]
        shape = min(known, key=lambda shape: shape[1] + shape[2], default=wanted)
        batches.append((positions[:count], shape))
        positions, widths = positions[count:], widths[count:]
    return batches


def _contains(outer, inner):
    return inner.source_width <= outer.source_width and inner.target_width <= outer.target_width


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
