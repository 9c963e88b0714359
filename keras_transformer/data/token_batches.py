"""Shuffled batches with about the same number of tokens: inputs, labels and weights."""

import functools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.checks import check_argument
from keras_transformer.data.batch_arrays import (
    Batch,
    CorpusArrays,
    EpochArrays,
    PackedCorpus,
    arrange_epoch,
    balanced_widths,
    corpus_arrays,
    make_batch,
    pack_corpus,
    shared_tensor,
)
from keras_transformer.data.batch_plan import (
    BatchPlan,
    BatchShape,
    BatchSize,
    choose_shapes,
    plan_batches,
    plan_equal_batches,
)
from keras_transformer.data.encoded_corpus import EncodedCorpus

# Number of prefetched batches, which are small: no step waits while the next epoch is encoded.
_PREFETCHED = 16


class _Epochs(NamedTuple):
    """The pairs of every epoch: all of a corpus, drawn from a mixture, or encoded again."""

    # From an epoch to its corpus and the indices of its pairs; None for each pair once.
    pairs: Callable[[int], tuple[Any, np.ndarray | None]]
    corpus: Any  # of all epochs, or whose texts they share; None if each has another one
    repeat: bool  # Whether all epochs have the same pairs, and so the same plan.

    @classmethod
    def of(cls, encoded, seed: int, shuffle: bool) -> "_Epochs":
        """Returns the epochs of a corpus, or of a function; validation is not mixed."""
        if not isinstance(encoded, EncodedCorpus):
            encode = functools.lru_cache(maxsize=1)(encoded)
            return cls(lambda epoch: (encode(epoch), None), None, False)
        if encoded.mixture and shuffle:
            draw = encoded.mixture.draw
            return cls(lambda epoch: (encoded, draw(seed, epoch)), encoded, False)
        return cls(lambda epoch: (encoded, None), encoded, True)

    def packed(self, widths: tuple[int, int], seed: int) -> "_Epochs":
        """Returns epochs of packed rows; those of a fixed corpus stay the same."""
        if self.repeat:
            rows = pack_corpus(self.corpus, widths, seed)
            return _Epochs(lambda epoch: (rows, None), rows, True)

        def pairs(epoch):
            encoded, drawn = self.pairs(epoch)
            return pack_corpus(encoded, widths, seed, drawn), None

        return _Epochs(pairs, self.corpus, False)


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
        tokens_per_batch: Upper bound of rows * width for the source and for the target. A pair
            that is longer than this, or a packed row, is a batch of its own.
        seed: The order of pairs and batches is a function of the seed and the epoch.
        shuffle: `False` for validation: the same batches of all pairs, in the same order, in every
            epoch.
        row_multiple: Rows are a multiple of this number if that many fit.
        num_replicas: Devices that share a batch. Rows are always a multiple of this number, even
            where a few very long sentences then exceed `tokens_per_batch`.
        max_shapes: Approximate maximum number of shapes (each is traced or compiled once).
        batch_shapes: Shapes of another `TokenBatches`, to use instead of choosing them.
        packed_width: Width of a row that holds several pairs, chosen by corpus and seed; `None`:
            one pair per row. The side with fewer tokens is narrower if `encoded` is a corpus.

    Raises:
        ValueError: If an argument is out of range, there is no pair, a pair is longer than
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
        if packed_width is not None and batch_shapes is not None:
            rule = "Packed batches have one shape, of packed_width; batch_shapes must be None"
            raise ValueError(f"{rule}. Received: {batch_shapes=}, {packed_width=}")
        self.tokens_per_batch = _integer("tokens_per_batch", tokens_per_batch)
        self.seed = _integer("seed", seed, 0, 2**64 - 1)
        self.shuffle = shuffle
        self._order_seed = self.seed if shuffle else None
        self.packed_width = None
        if packed_width is not None:
            self.packed_width = _integer("packed_width", packed_width)
        self.num_replicas = _integer("num_replicas", num_replicas)
        self.row_multiple = math.lcm(_integer("row_multiple", row_multiple), self.num_replicas)
        self._size = BatchSize(self.tokens_per_batch, self.row_multiple, self.num_replicas)
        self._steps: dict[int, int] = {}
        self._lock = threading.RLock()  # tf.data encodes epochs in another thread
        self._plans: dict[int, Any] = {}  # of the epoch that is read and of the next
        self._epochs = _Epochs.of(encoded, self.seed, shuffle)
        first, _ = self._epochs.pairs(0)
        if not len(first):
            raise ValueError("There is no pair to make batches of. Received: len(encoded)=0")
        if self.packed_width is not None:
            widths = self.packed_width, self.packed_width
            if isinstance(encoded, EncodedCorpus):
                widths = balanced_widths(encoded, self.packed_width)
            self._epochs = self._epochs.packed(widths, self.seed)
            batch_shapes = [BatchShape(self._size.rows(*widths), *widths)]
        elif batch_shapes is None:
            lengths = first.source_lengths, first.target_lengths
            batch_shapes = choose_shapes(*lengths, self._size, _integer("max_shapes", max_shapes))
        self.batch_shapes = tuple(batch_shapes)
        self._plan(0)  # raises an error if a pair cannot be packed

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch as NumPy arrays.

        Args:
            epoch: From 0.
            start: Number of batches to leave out.
        """
        corpus, arrays = self._epoch(epoch)
        for number in arrays.order[start:].tolist():
            yield make_batch(corpus, arrays, number, self.packed_width is not None)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Returns the number of batches in an epoch; `epoch` is as in `batches`."""
        epoch = 0 if self._epochs.repeat else epoch
        if epoch not in self._steps:
            self._plan(epoch)
        return self._steps[epoch]

    def position(self, step: int, epoch: int = 0) -> tuple[int, int]:
        """Returns (epoch, batch), both from 0, of a step counted from the beginning of `epoch`.

        Args:
            step: From 0. If `encoded` is a function, it is called for every epoch in between.
            epoch: Where the count begins.
        """
        if step < 0:
            raise ValueError(f"step must not be negative. Received: {step=}")
        if self._epochs.repeat:
            epochs, step = divmod(step, self.steps_per_epoch())
            return epoch + epochs, step
        while step >= self.steps_per_epoch(epoch):
            step -= self.steps_per_epoch(epoch)
            epoch += 1
        return epoch, step

    def shapes(self, epoch: int = 0) -> Counter[BatchShape]:
        """Returns the number of batches of each shape in an epoch; `epoch` is as in `batches`."""
        *_, plan = self._plan(epoch)
        return Counter(BatchShape(*shape) for shape in plan.shapes.tolist())

    def padding_share(self, epoch: int = 0) -> dict[str, float]:
        """Returns the shares of padding of "source" and "target"; `epoch` is as in `batches`."""
        corpus, pairs, plan = self._plan(epoch)
        if isinstance(corpus, PackedCorpus):
            pairs, corpus = corpus.pairs, corpus.encoded
        pairs = slice(None) if pairs is None else pairs
        rows, source_widths, target_widths = plan.shapes.T
        sizes = {"source": (rows * source_widths).sum(), "target": (rows * target_widths).sum()}
        lengths = corpus.source_lengths, corpus.target_lengths
        numbers = [int(of_side[pairs].sum()) for of_side in lengths]
        return {s: 1 - n / int(sizes[s]) for s, n in zip(sizes, numbers, strict=True)}

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
            start_step: Number of batches to skip from the beginning of `epoch`, even whole epochs.
            repeat: `True` gives epoch after epoch without end; `False` the rest of one epoch.
            epoch: Where to begin.
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
        arrays_of = self._arrays_in_graph()

        def batches(epoch, corpus, arrays):
            begin = tf.where(tf.equal(epoch, first), tf.constant(start, tf.int64), 0)
            numbers = tf.data.Dataset.range(begin, tf.size(arrays.order, tf.int64))
            packed = self.packed_width is not None
            return numbers.map(
                lambda number: make_batch(corpus, arrays, arrays.order[number], packed, tf, share),
                tf.data.AUTOTUNE,
            )

        epochs = tf.data.Dataset.range(first, tf.int64.max if repeat else first + 1)
        # One epoch ahead, so that no step waits for the next epoch's order.
        epochs = epochs.map(lambda epoch: (epoch, *arrays_of(epoch))).prefetch(1)
        dataset = epochs.flat_map(batches)
        count = tf.data.INFINITE_CARDINALITY if repeat else self.steps_per_epoch(first) - start
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        options = tf.data.Options()
        # The optimization would put a copy of the whole corpus into the graph and gain little.
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        # The thread of autotuning may miss its end; deleting an iterator then waits up to a minute.
        options.autotune.enabled = False
        return dataset.with_options(options).prefetch(_PREFETCHED)

    def finish_encoding(self) -> None:
        """Waits until no epoch is being encoded in a thread of `tf.data`, which needs Python.

        An iterator of `dataset` must not be deleted before: deleting blocks Python.
        """
        with self._lock:
            pass

    def _plan(self, epoch: int) -> tuple[Any, np.ndarray | None, BatchPlan]:
        """Returns the corpus of an epoch, the indices of its pairs (None for all), and the plan."""
        if epoch < 0:
            raise ValueError(f"epoch must not be negative. Received: {epoch=}")
        epoch = 0 if self._epochs.repeat else epoch
        with self._lock:
            if epoch not in self._plans:
                corpus, drawn = self._epochs.pairs(epoch)
                if isinstance(corpus, PackedCorpus):
                    plan = plan_equal_batches(corpus.num_rows, *self.batch_shapes)
                else:
                    pairs = slice(None) if drawn is None else drawn
                    lengths = corpus.source_lengths[pairs], corpus.target_lengths[pairs]
                    plan = plan_batches(self.batch_shapes, *lengths, self._size)
                self._steps[epoch] = len(plan.shapes)
                if len(self._plans) > 1:
                    del self._plans[next(iter(self._plans))]
                self._plans[epoch] = corpus, drawn, plan
            return self._plans[epoch]

    def _epoch(self, epoch: int) -> tuple[CorpusArrays, EpochArrays]:
        """Returns the arrays of the corpus and of the batches of an epoch."""
        with self._lock:
            corpus, drawn, plan = self._plan(epoch)
            return corpus_arrays(corpus), arrange_epoch(plan, self._order_seed, epoch, drawn)

    def _arrays_in_graph(self) -> Callable[[Any], tuple[CorpusArrays, EpochArrays]]:
        """Returns `_epoch` for graphs: a function of a tensor that returns tensors."""
        import tensorflow as tf

        corpus: Any = ()
        if self._epochs.corpus is not None:
            arrays = corpus_arrays(self._epochs.corpus)
            if self.packed_width is not None and not self._epochs.repeat:
                arrays = arrays[:4]  # ids and offsets; each epoch has its own rows
            corpus = [shared_tensor(array) for array in arrays]
        if self._epochs.repeat:
            # Without Python: deleting an iterator blocks Python until the thread of `tf.data` ends,
            # and a thread that waits for Python would never end.
            *_, plan = self._plan(0)
            tensors = {name: shared_tensor(getattr(plan, name)) for name in ("groups", "positions")}
            plan = plan._replace(**tensors)
            whole = CorpusArrays(*corpus)
            return lambda epoch: (whole, arrange_epoch(plan, self._order_seed, epoch, tf=tf))
        # What each epoch has of its own of the corpus, then the epoch.
        fields = {**CorpusArrays.__annotations__, **EpochArrays.__annotations__}
        names = [*fields][len(corpus) :]
        narrow = ("source_ids", "target_ids", "packed_pairs", "rows")
        dtypes = ["int32" if name in narrow else "int64" for name in names]

        def read(number):
            arrays = [array for arrays in self._epoch(int(number)) for array in arrays]
            pairs = zip(arrays[len(corpus) :], dtypes, strict=True)
            return [array.astype(dtype) for array, dtype in pairs]

        def arrays_of(epoch):
            tensors = tf.numpy_function(read, [epoch], dtypes)
            for name, tensor in zip(names, tensors, strict=True):
                tensor.set_shape([None] * (2 if name == "shapes" else 1))
            start = len(names) - len(EpochArrays._fields)
            return CorpusArrays(*corpus, *tensors[:start]), EpochArrays(*tensors[start:])

        return arrays_of


def _integer(name, value, least=1, most=2**31 - 1) -> int:
    """Returns an argument as `int`; raises a `ValueError` if it is none in the range."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    rule = f"an integer from {least} to {most}"
    check_argument(is_integer and least <= value <= most, name, rule, value)
    return int(value)
