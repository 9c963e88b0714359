"""Shuffled batches with about the same number of tokens: inputs, labels and weights."""

import functools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data import batch_plan
from keras_transformer.data.batch_plan import BatchPlan, BatchShape, BatchSize
from keras_transformer.data.encoded_corpus import EncodedCorpus, shared_tensor
from keras_transformer.data.packing import balanced_widths, pack_corpus
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID

# Number of prefetched batches, which are small: no step waits while the next epoch is encoded.
_PREFETCHED = 16

Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]


class EpochArrays(NamedTuple):
    """The arrays or tensors of an epoch's batches, int64 except for the ids."""

    source_ids: np.ndarray  # [source tokens]
    source_offsets: np.ndarray  # [pairs + 1]
    target_ids: np.ndarray  # [target tokens]
    target_offsets: np.ndarray  # [pairs + 1]
    pairs: np.ndarray  # [pairs], in the order of their batches
    splits: np.ndarray  # [batches + 1]: batch `i` has `pairs[splits[i]:splits[i + 1]]`
    shapes: np.ndarray  # [batches, 3]: rows, source width and target width
    order: np.ndarray  # [batches], the order of the batches


class TokenBatches:
    """Cuts an encoded corpus into batches by number of tokens, shuffled reproducibly by a seed.

    Each batch is `({"source", "target"}, labels, weights)`: source int32 `[rows, source_width]`
    ends with EOS; target int32 `[rows, target_width]` is BOS and the sentence; labels have the same
    shape and are the sentence and EOS. Weights float32 are 0 on padding and 1 / (number of labels
    in the whole batch) elsewhere, so that a sum over all replicas is the mean per token. Some of
    the last batches have rows of padding only, to keep rows divisible.

    Sentences of similar lengths share a batch, in a few shapes with little padding. With
    `packed_width`, rows contain several pairs, and there are two more inputs: `source_segments`,
    int32 with the shape of the source, numbers the pairs of a row 1, 2, ..., and is 0 on padding;
    `target_segments` does so for target and labels. Every segment of the target begins with BOS,
    and of the labels ends with EOS. The model must mask attention between segments.

    Args:
        encoded: `EncodedCorpus`, all of whose pairs are in every epoch, or those that its `mixture`
            draws; or a function `epoch -> EncodedCorpus`, called once for each epoch, which must
            return the same corpus for the same epoch.
        tokens_per_batch: upper bound of rows * width for the source and for the target. A pair
            that is longer than this, or a packed row, is a batch of its own.
        seed: the order of pairs and batches is a function of the seed and the epoch.
        shuffle: `False` for validation: the same batches of all pairs, in the same order, in every
            epoch.
        row_multiple: rows are a multiple of this number if that many fit.
        num_replicas: devices that share a batch. Rows are always a multiple of this number, even
            where a few very long sentences then exceed `tokens_per_batch`.
        max_shapes: approximate maximum number of shapes (each is traced or compiled once).
        batch_shapes: shapes of another `TokenBatches`, to use instead of choosing them.
        packed_width: width of a row that holds several pairs, chosen by corpus and seed; `None`:
            one pair per row. The side with fewer tokens is narrower if `encoded` is a corpus.

    Raises:
        ValueError: if an argument is out of range, there is no pair, a pair is longer than
            `packed_width`, or both `packed_width` and `batch_shapes` are given.

    Example:

    >>> from keras_transformer.data import EncodedCorpus, SubwordTokenizer, TokenBatches
    >>> pairs, tokenizer = [("a b", "c"), ("a", "b c")], SubwordTokenizer(["a", "b", "c"])
    >>> encoded = EncodedCorpus.from_corpus(pairs, tokenizer)
    >>> batches = TokenBatches(encoded, tokens_per_batch=16, row_multiple=2, shuffle=False)
    >>> inputs, labels, weights = next(batches.batches(epoch=0))
    >>> inputs["target"].tolist(), labels.tolist()
    ([[2, 6, 0], [2, 5, 6]], [[6, 3, 0], [5, 6, 3]])
    >>> packed = TokenBatches(encoded, tokens_per_batch=6, packed_width=6)
    >>> inputs, labels, weights = next(packed.batches(epoch=0))
    >>> inputs["target"].tolist(), inputs["target_segments"].tolist()
    ([[2, 6, 2, 5, 6, 0]], [[1, 1, 2, 2, 2, 0]])

    Reference: Vaswani et al., 2017, section 5.1: batches of 25,000 source and target tokens each.
    """

    def __init__(
        self,
        encoded: EncodedCorpus | Callable[[int], EncodedCorpus],
        tokens_per_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        row_multiple: int = 8,
        num_replicas: int = 1,
        max_shapes: int = 24,
        batch_shapes: Sequence[BatchShape] | None = None,
        packed_width: int | None = None,
    ):
        sizes = {"tokens_per_batch": tokens_per_batch, "row_multiple": row_multiple}
        sizes |= {"num_replicas": num_replicas, "max_shapes": max_shapes, "seed": seed}
        _check_integers(sizes if packed_width is None else sizes | {"packed_width": packed_width})
        if packed_width is not None and batch_shapes is not None:
            rule = "Packed batches have one shape, of packed_width; batch_shapes must be None"
            raise ValueError(f"{rule}. Received: {batch_shapes=}, {packed_width=}")
        self.tokens_per_batch = int(tokens_per_batch)
        self.seed = int(seed)
        self.shuffle = shuffle
        self._order_seed = self.seed if shuffle else None
        self.packed_width = None if packed_width is None else int(packed_width)
        self.num_replicas = int(num_replicas)
        self.row_multiple = math.lcm(int(row_multiple), self.num_replicas)
        self._size = BatchSize(self.tokens_per_batch, self.row_multiple, self.num_replicas)
        self._encode_epoch: Any = encoded  # a function, unless `_fixed` is the corpus
        self._mixture = self._fixed = None
        width = self.packed_width or 0
        self._widths = width, width  # of packed rows: source and target
        if isinstance(encoded, EncodedCorpus):
            self._encode_epoch = lambda epoch: encoded
            self._mixture = encoded.mixture if shuffle else None
            if width and len(encoded):
                self._widths = balanced_widths(encoded, width)
            if self._mixture is None or packed_width is None:
                self._fixed = self._encoded(0)
        # Whether all epochs have the same plan.
        self._repeats = self._fixed is not None and self._mixture is None
        self._last: tuple[int, EpochArrays] | None = None
        self._steps: dict[int, int] = {}
        self._lock = threading.RLock()  # tf.data encodes epochs in another thread
        if batch_shapes is None:
            first = self._encoded(0)
            if not len(first):
                raise ValueError("There is no pair to make batches of. Received: len(encoded)=0")
            if packed_width is None:
                lengths = first.source_lengths, first.target_lengths
                batch_shapes = batch_plan.choose_shapes(*lengths, self._size, max_shapes)
            else:
                batch_shapes = [BatchShape(self._size.rows(*self._widths), *self._widths)]
        self.batch_shapes = tuple(batch_shapes)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch as NumPy arrays.

        Args:
            epoch: from 0.
            start: number of batches to leave out.
        """
        arrays = self._epoch(epoch)
        for number in arrays.order[start:].tolist():
            yield make_batch(arrays, number, self.packed_width is not None)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Returns the number of batches in an epoch; arguments as of `batches`."""
        if self._repeats:
            return len(self._fixed_plan)
        if epoch not in self._steps:
            self._epoch(epoch)
        return self._steps[epoch]

    def position(self, step: int, epoch: int = 0) -> tuple[int, int]:
        """Returns (epoch, batch), both from 0, of a step counted from the beginning of `epoch`.

        Args:
            step: from 0. A function encodes every epoch in between.
            epoch: where the count begins.
        """
        if step < 0:
            raise ValueError(f"step must not be negative. Received: {step=}")
        if self._repeats:
            epochs, step = divmod(step, self.steps_per_epoch())
            return epoch + epochs, step
        while step >= self.steps_per_epoch(epoch):
            step -= self.steps_per_epoch(epoch)
            epoch += 1
        return epoch, step

    def shapes(self, epoch: int = 0) -> Counter[BatchShape]:
        """Returns the number of batches of each shape in an epoch; arguments as of `batches`."""
        return Counter(BatchShape(*shape) for shape in self._epoch(epoch).shapes.tolist())

    def padding_share(self, epoch: int = 0) -> dict[str, float]:
        """Returns the shares of padding of "source" and "target"; arguments as of `batches`."""
        arrays = self._epoch(epoch)
        rows, source_widths, target_widths = arrays.shapes.T
        num_tokens = int(np.diff(arrays.source_offsets)[arrays.pairs].sum())
        # The target ids have no EOS, but each pair has one as a label.
        num_labels = int(np.diff(arrays.target_offsets)[arrays.pairs].sum()) + len(arrays.pairs)
        source = num_tokens / int((rows * source_widths).sum())
        return {"source": 1 - source, "target": 1 - num_labels / int((rows * target_widths).sum())}

    def dataset(
        self,
        start_step: int = 0,
        repeat: bool = True,
        epoch: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> Any:
        """Returns the batches as a `tf.data.Dataset` of the tuples that the class describes.

        Under `tf.distribute.MirroredStrategy` each element is a global batch, split along axis 0.

        Args:
            start_step: number of batches to skip from the beginning of `epoch`, even whole epochs.
            repeat: `True` gives epoch after epoch without end; `False` the rest of one epoch.
            epoch: where to begin.
            share: `(i, n)` gives the i-th of n equal parts of the rows of each batch, i from 0; n
                must divide `num_replicas`.
        """
        import tensorflow as tf

        if start_step < 0:
            raise ValueError(f"start_step must not be negative. Received: {start_step=}")
        if self.num_replicas % share[1] or not 0 <= share[0] < share[1]:
            rule = "share is (i, n) with 0 <= i < n, and n divides num_replicas"
            raise ValueError(f"{rule}. Received: {share=}, num_replicas={self.num_replicas}")
        first, start = self.position(start_step, epoch)
        packed = self.packed_width is not None
        arrays_of: Any = self._load_in_graph
        if self._fixed is not None:
            corpus: Any = [shared_tensor(array) for array in self._fixed.arrays()]
            arrays_of = functools.partial(self._load_in_graph, corpus=corpus)
        if self._repeats:
            plan = BatchPlan(*map(shared_tensor, self._fixed_plan))
            arrays_of = functools.partial(arrange_epoch, corpus, plan, self._order_seed, tf=tf)

        # Without Python: deleting an iterator blocks Python until the `tf.data` thread ends, and a
        # thread that waits for Python would never end.
        def batches(epoch, arrays):
            begin = tf.where(tf.equal(epoch, first), tf.constant(start, tf.int64), 0)
            numbers = tf.data.Dataset.range(begin, tf.size(arrays.order, tf.int64))
            return numbers.map(
                lambda number: make_batch(arrays, arrays.order[number], packed, tf, share),
                tf.data.AUTOTUNE,
            )

        epochs = tf.data.Dataset.range(first, tf.int64.max if repeat else first + 1)
        # One epoch ahead, so that no step waits for the next epoch's order.
        epochs = epochs.map(lambda epoch: (epoch, arrays_of(epoch))).prefetch(1)
        dataset = epochs.flat_map(batches)
        count = tf.data.INFINITE_CARDINALITY if repeat else self.steps_per_epoch(first) - start
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        options = tf.data.Options()
        # The optimization would put a copy of the whole corpus into the graph and gain little.
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.with_options(options).prefetch(_PREFETCHED)

    def finish_encoding(self) -> None:
        """Waits until no epoch is being encoded in a thread of `tf.data`, which needs Python.

        An iterator of `dataset` must not be deleted before: deleting blocks Python.
        """
        with self._lock:
            pass

    def _epoch(self, number: int) -> EpochArrays:
        if number < 0:
            raise ValueError(f"epoch must not be negative. Received: epoch={number!r}")
        with self._lock:
            if self._last is None or self._last[0] != number:
                encoded = self._encoded(number)
                drawn = None if self.packed_width else self._draw(number)
                plan = self._fixed_plan if self._repeats else self._plan(encoded, drawn)
                order = plan, self._order_seed, number, drawn
                self._last = number, arrange_epoch(encoded.arrays(), *order)
                self._steps[number] = len(plan)
            return self._last[1]

    def _load_in_graph(self, epoch, corpus=()) -> EpochArrays:
        """Returns `_epoch` as an operation of a graph; `corpus` has tensors of the first arrays."""
        import tensorflow as tf

        names = EpochArrays._fields[len(corpus) :]
        dtypes = ["int32" if name.endswith("_ids") else "int64" for name in names]

        def arrays_of(number):
            arrays = self._epoch(int(number))[len(corpus) :]
            return [array.astype(dtype) for array, dtype in zip(arrays, dtypes, strict=True)]

        arrays = EpochArrays(*corpus, *tf.numpy_function(arrays_of, [epoch], dtypes))
        for name, array in arrays._asdict().items():
            array.set_shape([None] * (2 if name == "shapes" else 1))
        return arrays

    def _encoded(self, epoch: int) -> EncodedCorpus:
        if self._fixed is not None:
            return self._fixed
        encoded = self._encode_epoch(epoch)
        if self.packed_width is None or not len(encoded):
            return encoded
        return pack_corpus(encoded, self._widths, self.seed, self._draw(epoch))

    def _draw(self, epoch: int) -> np.ndarray | None:
        """Returns the indices of the pairs of an epoch; None if it has every pair once."""
        return None if self._mixture is None else self._mixture.draw(self.seed, epoch)

    @functools.cached_property
    def _fixed_plan(self) -> BatchPlan:
        return self._plan(self._encoded(0))

    def _plan(self, encoded: EncodedCorpus, drawn: np.ndarray | None = None) -> BatchPlan:
        if self.packed_width is not None:
            return batch_plan.plan_equal_batches(len(encoded), *self.batch_shapes)
        pairs = slice(None) if drawn is None else drawn
        lengths = encoded.source_lengths[pairs], encoded.target_lengths[pairs]
        return batch_plan.plan_batches(self.batch_shapes, *lengths, self._size)


def arrange_epoch(
    corpus: tuple[Any, Any, Any, Any], plan: BatchPlan, seed: int | None, epoch, drawn=None, tf=None
) -> EpochArrays:
    """Returns the arrays of an epoch with the pairs `drawn`; `corpus` has those of all pairs."""
    arranged = batch_plan.arrange_pairs(plan.groups, seed, epoch, tf)
    pairs = arranged[plan.positions] if tf is None else tf.gather(arranged, plan.positions)
    pairs = pairs if drawn is None else drawn[pairs]
    order = batch_plan.shuffle_batches(len(plan), seed, epoch, tf)
    return EpochArrays(*corpus, pairs, plan.splits, plan.shapes, order)


def make_batch(
    arrays: EpochArrays, number, packed: bool, tf=None, share: tuple[int, int] = (0, 1)
) -> Batch:
    """Returns `(inputs, labels, weights)` of a share of a batch, as `TokenBatches` describes them.

    Weights are those of the whole batch.
    """
    xp, arange = (np, np.arange) if tf is None else (tf.experimental.numpy, tf.range)
    first, end = arrays.splits[number], arrays.splits[number + 1]
    rows, source_width, target_width = (arrays.shapes[number, side] for side in range(3))
    pairs = xp.take(arrays.pairs, first + arange(end - first), mode="clip")
    offsets = xp.take(arrays.target_offsets, pairs), xp.take(arrays.target_offsets, pairs + 1)
    num_labels = xp.sum(offsets[1] - offsets[0] + 1)  # of the whole batch, with EOS
    rows = rows // share[1]
    row_numbers = share[0] * rows + arange(rows)
    filled = row_numbers < end - first
    pairs = xp.take(arrays.pairs, first + row_numbers, mode="clip")

    def padded(ids, offsets, width):
        starts = xp.take(offsets, pairs, mode="clip")
        lengths = xp.where(filled, xp.take(offsets, pairs + 1, mode="clip") - starts, 0)
        columns = arange(width)
        # Positions past the end of a row read the next row, or the last id, and are masked.
        gathered = xp.take(ids, starts[:, None] + columns, mode="clip")
        return xp.where(columns < lengths[:, None], gathered, PAD_ID), lengths

    source, _ = padded(arrays.source_ids, arrays.source_offsets, source_width)
    target, lengths = padded(arrays.target_ids, arrays.target_offsets, target_width)
    ends = (arange(target_width) == lengths[:, None]) & filled[:, None]
    source, target = xp.asarray(source, np.int32), xp.asarray(target, np.int32)
    labels = xp.where(ends, np.int32(EOS_ID), target)
    # Rows without a pair contain padding only.
    begin = xp.where(filled, np.int32(BOS_ID), np.int32(PAD_ID))[:, None]
    target = xp.concatenate([begin, target[:, :-1]], axis=1)
    inputs = {"source": source, "target": target}
    if packed:
        inputs["target"] = xp.where(target == EOS_ID, np.int32(BOS_ID), target)
        inputs["source_segments"] = _segments(source, xp)
        inputs["target_segments"] = _segments(labels, xp)
    mask = xp.asarray(labels != PAD_ID, np.float32)
    return inputs, labels, mask / xp.asarray(num_labels, np.float32)


def _segments(ids, xp):
    """Returns 1, 2, ... for the segments of a row, which end with EOS, and 0 on padding."""
    ends = xp.asarray(ids == EOS_ID, np.int32)
    ended_before = xp.cumsum(ends, axis=1, dtype=np.int32) - ends
    return xp.asarray(xp.where(ids == PAD_ID, 0, ended_before + 1), np.int32)


def _check_integers(values):
    for name, value in values.items():
        # Widths and rows are int32.
        least, most = (0, 2**64 - 1) if name == "seed" else (1, 2**31 - 1)
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_integer or not least <= value <= most:
            rule = f"{name} must be an integer from {least} to {most}"
            raise ValueError(f"{rule}. Received: {name}={value!r}")
