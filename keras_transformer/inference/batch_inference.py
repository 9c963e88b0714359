"""Compiled search, scores and attention of padded batches of token ids."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import ForcedPrefix, SearchResult, compile_search
from keras_transformer.inference.memory import cut_batches, streams_that_fit
from keras_transformer.layers.checks import check_positive_integer
from keras_transformer.models.cross_entropy import cross_entropy

# JAX compiles for each shape: lengths are rounded up to a multiple, numbers of rows to powers of 2.
_LENGTH_MULTIPLE = 32


def search_ids(model, source, max_lengths, search, max_length=None, **search_options):
    """Encodes the source once and searches, as one function to compile or export.

    Args:
        model: a `Transformer` or `Ensemble`.
        source: int32 `[batch, length]`, with EOS, padded.
        max_lengths: int32 `[batch]`, maximum number of tokens of each answer, with EOS.
        search: a search of `keras_transformer.decoding`.
        max_length: maximum of `max_lengths`, an int where shapes must be static; None computes it.
        **search_options: further arguments of the search's call.
    """
    if max_length is None:
        max_length = ops.max(max_lengths)
    state = model.start_decoding(source, search.width, max_length)
    return search(
        model.decode_step,
        state,
        max_lengths,
        max_length,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        pad_id=PAD_ID,
        keep_sentences=model.keep_sentences,
        **search_options,
    )


def answer_limits(num_tokens, extra_length, max_length=None):
    """Returns the maximum number of tokens of each answer, with EOS, int32 `[batch]`.

    It is `num_tokens + extra_length`, at most `max_length`, and 1 where `num_tokens` is 0.
    """
    limits = num_tokens + extra_length
    if max_length is not None:
        limits = ops.minimum(limits, max_length)
    return ops.cast(ops.where(ops.equal(num_tokens, 0), 1, limits), "int32")


def one_answer(search):
    """Returns the search for the best answer alone, with which a beam search can stop earlier."""
    return dataclasses.replace(search, n_best=1) if hasattr(search, "n_best") else search


class BatchInference:
    """Compiled inference with one model; each search is compiled once.

    The weights are read at each call, so that training the model further changes the answers.

    Args:
        model: a `Transformer`.
        make_constraint: function that returns a constraint of `keras_transformer.decoding` from
            int32 `[batch]`, one number for each source; for searches with `constraint_numbers`.
    """

    def __init__(self, model, make_constraint=None):
        self.model = model
        self._make_constraint = make_constraint
        self._compiled = {}
        self._compiling = threading.Lock()

    def search_batches(
        self, sources, max_lengths, search, batch_size, max_positions, num_streams=1, **rows
    ) -> Iterator[tuple[list[int], SearchResult]]:
        """Searches for the answers to any number of sources, the largest first.

        Args:
            sources, max_lengths, search: as in `search`, of all sources.
            batch_size: maximum number of sources in a batch.
            max_positions: maximum number of positions of source (without EOS) and answer in a
                batch, over all rows of the search; a source that needs more is alone.
            num_streams: number of batches that are searched at the same time, each in a thread;
                fewer if the memory is too small. Unless the search draws, the sources are shared
                out evenly.
            **rows: `prefixes` and `constraint_numbers`, as in `search`, of all sources.

        Yields:
            The indices of the sources of a batch, and their `SearchResult`.

        Raises:
            UserError: if the memory is too small for the largest source.
        """
        sizes = [
            search.width * (len(source) - 1 + limit)
            for source, limit in zip(sources, max_lengths, strict=True)
        ]
        check_positive_integer("batch_size", batch_size)
        check_positive_integer("num_streams", num_streams)
        if sizes:
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            num_streams = streams_that_fit(
                self.model, search, len(sources[largest]), max_lengths[largest], num_streams
            )
        if not hasattr(search, "seed"):  # Drawn answers depend on the batch.
            # Even shares, and the memory of one stream.
            batch_size = min(batch_size, max(1, -(-len(sizes) // num_streams)))
            max_positions //= num_streams

        def search_batch(numbered):
            number, indices = numbered
            of_batch = {
                name: None if values is None else [values[index] for index in indices]
                for name, values in rows.items()
            }
            result = self.search(
                [sources[index] for index in indices],
                [max_lengths[index] for index in indices],
                search,
                seed_offset=number,
                **of_batch,
            )
            return indices, result

        batches = enumerate(cut_batches(sizes, batch_size, max_positions))
        yield from _in_streams(search_batch, batches, num_streams)

    def search(
        self, sources, max_lengths, search, seed_offset=0, prefixes=None, constraint_numbers=None
    ) -> SearchResult:
        """Searches for the answers of one batch.

        Args:
            sources: list of lists of ids, with EOS.
            max_lengths: maximum number of tokens of each answer, with EOS.
            search: a search of `keras_transformer.decoding`.
            seed_offset: added to the search's seed, so that batches draw different numbers.
            prefixes: list of lists of ids that the answers begin with, or None.
            constraint_numbers: list of int for `make_constraint`; None for no constraint.

        Returns:
            `SearchResult` of NumPy arrays.
        """
        # An int where shapes must be static (`sizes` below), otherwise a tensor.
        options = {"max_length": _rounded(max(max_lengths))}
        compiled_search = search
        if hasattr(search, "seed"):
            # The seed is an input, so that another seed needs no compilation.
            options["seed"] = np.int32((search.seed + seed_offset) % 2**31)
            compiled_search = dataclasses.replace(search, seed=0)
        has_prefixes = prefixes is not None and any(prefixes)
        if has_prefixes:
            options["prefixes"] = self._padded(prefixes)
        num_rows = len(sources)
        source = self._padded(sources)
        if constraint_numbers is not None:
            options["constraint_numbers"] = _tensor(_filled_up(constraint_numbers, len(source)))
        key = compiled_search, has_prefixes, constraint_numbers is not None
        with self._compiling:
            if key not in self._compiled:
                self._compiled[key] = self._compile_search(*key)
        limits = _filled_up(max_lengths, len(source))  # Rows of padding end at once.
        result = self._compiled[key](source=source, max_lengths=_tensor(limits), **options)
        return SearchResult(*(ops.convert_to_numpy(part)[:num_rows] for part in result))

    def log_probabilities(self, sources, targets) -> tuple[np.ndarray, np.ndarray]:
        """Returns the log-probabilities of given answers, with EOS.

        Args:
            sources: list of lists of ids, with EOS.
            targets: list of lists of ids, without BOS and EOS.

        Returns:
            The sum over each answer, float `[batch]`, and the value of each token, float
            `[batch, length]`, 0 on padding.
        """
        if "score" not in self._compiled:
            ranks = {"source": 2, "target": 2, "labels": 2}
            self._compiled["score"] = self._compile(self._score, ranks)
        inputs = self._padded([[BOS_ID, *ids] for ids in targets])
        labels = self._padded([[*ids, EOS_ID] for ids in targets])
        source = self._padded(sources)
        found = self._compiled["score"](source=source, target=inputs, labels=labels)
        return tuple(ops.convert_to_numpy(part)[: len(sources)] for part in found)

    def cross_attention(self, sources, targets, layer) -> np.ndarray:
        """Returns the attention of each token of given answers to each token of the source.

        Args:
            sources: list of lists of ids, with EOS.
            targets: list of lists of ids, without BOS and EOS.
            layer: index of the decoder block.

        Returns:
            Float `[batch, length + 1, source length]`: row t is the mean over the heads at the
            position that predicts token t.
        """

        def attention(source, target):
            scores = self.model.attention_scores(source, target)["cross"][layer]
            return ops.mean(ops.cast(scores, "float32"), axis=1)

        key = "attention", layer
        if key not in self._compiled:
            self._compiled[key] = self._compile(attention, {"source": 2, "target": 2})
        inputs = self._padded([[BOS_ID, *ids] for ids in targets])
        found = self._compiled[key](source=self._padded(sources), target=inputs)
        return ops.convert_to_numpy(found)[: len(sources)]

    def _padded(self, rows):
        return _tensor(padded(rows, self.model.config.max_length))

    def _score(self, source, target, labels):
        logits = self.model({"source": source, "target": target}, training=False)
        log_probabilities = -cross_entropy(labels, logits)
        log_probabilities = ops.where(ops.not_equal(labels, PAD_ID), log_probabilities, 0.0)
        return ops.sum(log_probabilities, axis=1), log_probabilities

    def _compile_search(self, search, has_prefixes, has_numbers):
        ranks = {"source": 2, "max_lengths": 1, "max_length": 0}
        ranks |= {"seed": 0} if hasattr(search, "seed") else {}
        ranks |= {"prefixes": 2} if has_prefixes else {}
        ranks |= {"constraint_numbers": 1} if has_numbers else {}

        def run(source, max_lengths, max_length, **options):
            constraints = []
            if has_prefixes:
                constraints.append(ForcedPrefix(options.pop("prefixes"), pad_id=PAD_ID))
            if has_numbers:
                constraints.append(self._make_constraint(options.pop("constraint_numbers")))
            options["constraints"] = constraints
            return search_ids(self.model, source, max_lengths, search, max_length, **options)

        return self._compile(run, ranks)

    def _compile(self, function, ranks):
        """Compiles a function of named int32 tensors; `ranks` has the rank of each."""
        if keras.config.backend() != "tensorflow":
            return compile_search(function, self.model.variables, sizes=("max_length",))
        import tensorflow as tf

        # With a signature one trace serves all shapes, from the first call on.
        signature = {
            name: tf.TensorSpec([None] * rank, tf.int32, name) for name, rank in ranks.items()
        }
        return tf.function(function, autograph=False).get_concrete_function(**signature)


def _in_streams(function: Callable, items: Iterable, num_streams: int) -> Iterator:
    """Yields the function's result for each item, in order, computing several at a time."""
    if num_streams == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(num_streams) as executor:
        # If the reader stops (Ctrl-C), `map` cancels the rest.
        yield from executor.map(function, items)


def padded(rows: Sequence[Sequence[int]], max_length: int | None = None) -> np.ndarray:
    """Pads rows of ids to int32 `[batch, length]`, on JAX to one of a few shapes.

    Padding does not go beyond `max_length`, the number of learned positions.
    """
    num_rows = len(rows)
    if keras.config.backend() == "jax":
        num_rows = 2 ** (num_rows - 1).bit_length()
    length = _rounded(max(map(len, rows)))
    length = length if max_length is None else min(length, max_length)
    array = np.full((num_rows, length), PAD_ID, "int32")
    for row, ids in zip(array, rows, strict=False):
        row[: len(ids)] = ids
    return array


def _filled_up(values, num_rows):
    """Returns int32 `[num_rows]`: the values, then ones."""
    return np.concatenate([values, np.ones(num_rows - len(values))]).astype("int32")


def _rounded(length):
    if keras.config.backend() != "jax":
        return int(length)
    return -(-int(length) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def _tensor(array):
    return ops.convert_to_tensor(array, dtype="int32")
