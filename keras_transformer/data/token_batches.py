"""Shuffled batches with about the same number of tokens: inputs, labels and weights."""

import functools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.data import batch_arrays, batch_plan
from keras_transformer.data.batch_arrays import Batch, EpochArrays
from keras_transformer.data.batch_plan import BatchPlan, BatchShape, BatchSize
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.packing import pack_corpus

# Number of prefetched batches, which are small: no step waits while the next epoch is encoded.
_PREFETCHED = 16


class TokenBatches:
    """Cuts an encoded corpus into batches by number of tokens, shuffled reproducibly by a seed.

    Each batch is `({"source", "target"}, labels, weights)`: source int32 `[rows, source_width]`
    ends with EOS; target int32 `[rows, target_width]` is BOS and the sentence; labels have the same
    shape and are the sentence and EOS. Weights float32 are 0 on padding and 1 / (number of labels
    in the whole batch) elsewhere, so that a sum over all replicas is the mean per token. Some of
    the last batches have rows of padding only, to keep rows divisible.

    Sentences of similar lengths share a batch. A few widths are chosen from the lengths of the
    corpus such that there is little padding (`batch_shapes`).

    With `packed_width`, rows of this width contain several pairs, all batches have one shape, and
    there are two more inputs. `source_segments`, int32 with the shape of the source, numbers the
    pairs of a row 1, 2, ..., and is 0 on padding; `target_segments` does so for target and labels.
    Every segment of the target begins with BOS and every segment of the labels ends with EOS. The
    model has to mask attention between segments.

    Args:
        encoded: `EncodedCorpus`; or a function `epoch -> EncodedCorpus`, called once for each
            epoch, such as one that splits the text again with BPE-dropout. It must return the same
            corpus for the same epoch.
        tokens_per_batch: upper bound of rows * width for the source and for the target. A pair
            that is longer than this, or a packed row, is a batch of its own.
        seed: the order of pairs and batches is a function of the seed and the epoch.
        shuffle: `False` for validation: the same batches in the same order in every epoch.
        row_multiple: rows are a multiple of this number if that many fit.
        num_replicas: devices that share a batch: rows are always a multiple of this number, so a
            few batches of very long sentences may be larger than `tokens_per_batch`.
        max_shapes: approximate maximum number of shapes (each is traced or compiled once).
        batch_shapes: shapes of another `TokenBatches`, to use instead of choosing them.
        packed_width: number of positions of a row that holds several pairs; `None`: one pair per
            row. The pairs that share a row are a function of the corpus and the seed.

    Raises:
        ValueError: if an argument is out of range, there is no pair, a pair is longer than
            `packed_width`, or both `packed_width` and `batch_shapes` are given.

    Example:

    >>> from keras_transformer.data import EncodedCorpus, PairsCorpus, SubwordTokenizer
    >>> from keras_transformer.data import TokenBatches
    >>> corpus = PairsCorpus([("a b", "c"), ("a", "b c")])
    >>> encoded = EncodedCorpus.from_corpus(corpus, SubwordTokenizer(["a", "b", "c"]))
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
        _check_integers(
            tokens_per_batch=tokens_per_batch,
            row_multiple=row_multiple,
            num_replicas=num_replicas,
            max_shapes=max_shapes,
            packed_width=1 if packed_width is None else packed_width,
            seed=seed,
        )
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
        self._fixed = self._packed(encoded) if isinstance(encoded, EncodedCorpus) else None
        self._encode_epoch = encoded
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
                widths = self.packed_width, self.packed_width
                batch_shapes = [BatchShape(self._size.rows(*widths), *widths)]
        self.batch_shapes = tuple(batch_shapes)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch as NumPy arrays.

        Args:
            epoch: from 0.
            start: number of batches to leave out.
        """
        arrays = self._epoch(epoch)
        for number in arrays.order[start:].tolist():
            yield batch_arrays.make_batch(arrays, number, self.packed_width is not None)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Returns the number of batches in an epoch; arguments as of `batches`."""
        known = 0 if self._fixed is not None else epoch  # same in all epochs of a fixed corpus
        if known not in self._steps:
            self._epoch(known)
        return self._steps[known]

    def position(self, step: int, epoch: int = 0) -> tuple[int, int]:
        """Returns (epoch, batch), both from 0, of a step counted from the beginning of `epoch`.

        With a function instead of a corpus, every epoch in between has to be encoded. A caller that
        stores epoch and batch needs no position: see `dataset(start_step=batch, epoch=epoch)`.

        Args:
            step: from 0.
            epoch: where the count begins.
        """
        if step < 0:
            raise ValueError(f"step must not be negative. Received: {step=}")
        if self._fixed is not None:
            epochs, batch = divmod(step, self.steps_per_epoch())
            return epoch + epochs, batch
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
        # The target ids have no EOS, but each pair has one as a label.
        num_labels = len(arrays.target_ids) + len(arrays.pairs)
        return {
            "source": 1 - len(arrays.source_ids) / int((rows * source_widths).sum()),
            "target": 1 - num_labels / int((rows * target_widths).sum()),
        }

    def dataset(self, start_step: int = 0, repeat: bool = True, epoch: int = 0) -> Any:
        """Returns the batches as a `tf.data.Dataset` of the tuples that the class describes.

        Under `tf.distribute.MirroredStrategy` each element is a global batch, split along axis 0.

        Args:
            start_step: number of batches to skip, counted from the beginning of `epoch`; it may
                reach into later epochs.
            repeat: `True` gives epoch after epoch without end; `False` the rest of one epoch.
            epoch: where to begin.
        """
        import tensorflow as tf

        if start_step < 0:
            raise ValueError(f"start_step must not be negative. Received: {start_step=}")
        epoch, start = self.position(start_step, epoch)
        if self._fixed is None:
            arrange = batch_arrays.loaded_epochs(self._epoch)
        else:
            arrange = batch_arrays.planned_epochs(self._fixed, self._fixed_plan, self._order_seed)
        dataset = batch_arrays.batch_dataset(
            arrange, epoch, start, repeat, self.packed_width is not None
        )
        count = tf.data.INFINITE_CARDINALITY if repeat else self.steps_per_epoch(epoch) - start
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        options = tf.data.Options()
        # The optimization would put a copy of the whole corpus into the graph and gain little.
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.with_options(options).prefetch(_PREFETCHED)

    def finish_encoding(self) -> None:
        """Waits until no epoch is being encoded in a thread of `tf.data`.

        Needed only if `encoded` is a function: an iterator of `dataset` must not be deleted while
        the thread encodes, because deleting blocks Python and waits for the thread, which needs it.
        """
        with self._lock:
            pass

    def _epoch(self, number: int) -> EpochArrays:
        if number < 0:
            raise ValueError(f"epoch must not be negative. Received: epoch={number!r}")
        with self._lock:
            if self._last is None or self._last[0] != number:
                encoded = self._encoded(number)
                plan = self._fixed_plan if encoded is self._fixed else self._plan(encoded)
                corpus = encoded.arrays()
                arrays = batch_arrays.arrange_epoch(corpus, plan, self._order_seed, number)
                self._last = number, arrays
                self._steps[number] = len(arrays.order)
            return self._last[1]

    def _encoded(self, epoch: int) -> EncodedCorpus:
        if self._fixed is not None:
            return self._fixed
        return self._packed(self._encode_epoch(epoch))

    def _packed(self, encoded: EncodedCorpus) -> EncodedCorpus:
        if self.packed_width is None or not len(encoded):
            return encoded
        return pack_corpus(encoded, self.packed_width, self.seed)

    @functools.cached_property
    def _fixed_plan(self) -> BatchPlan:
        return self._plan(self._fixed)

    def _plan(self, encoded: EncodedCorpus) -> BatchPlan:
        if self.packed_width is not None:
            return batch_plan.plan_equal_batches(len(encoded), *self.batch_shapes)
        lengths = encoded.source_lengths, encoded.target_lengths
        return batch_plan.plan_batches(self.batch_shapes, *lengths, self._size)


def _check_integers(**values):
    for name, value in values.items():
        # Widths and rows are int32.
        least, most = (0, 2**64 - 1) if name == "seed" else (1, 2**31 - 1)
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_integer or not least <= value <= most:
            rule = f"{name} must be an integer from {least} to {most}"
            raise ValueError(f"{rule}. Received: {name}={value!r}")
