"""Searching and scoring padded batches of token ids with a model, each one compiled function."""

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

# JAX compiles for each shape: lengths are rounded up to this, numbers of rows to a power of two.
_LENGTH_MULTIPLE = 32


def search_ids(model, source, max_lengths, search, max_length=None, **search_options):
    """Encodes the source once and searches; what is compiled, or exported, as a whole.

    Args:
        model: a `Transformer`.
        source: int32 `[batch, length]`, with EOS, padded.
        max_lengths: int32 `[batch]`, the most tokens of each answer, EOS included.
        search: a search of `keras_transformer.decoding`.
        max_length: the largest of `max_lengths`, an int where shapes must be static; None to
            compute it.
        **search_options: further arguments of the search's call.

    Returns:
        `SearchResult`.
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
    """Returns the most tokens that each answer may have, EOS included.

    Args:
        num_tokens: int32 `[batch]`, what a source counts: its subwords, or its words.
        extra_length: how many more its answer may have.
        max_length: the model's learned positions; None for none.

    Returns:
        int32 `[batch]`; 1 where `num_tokens` is 0.
    """
    limits = num_tokens + extra_length
    if max_length is not None:
        limits = ops.minimum(limits, max_length)
    return ops.cast(ops.where(ops.equal(num_tokens, 0), 1, limits), "int32")


def one_answer(search):
    """Returns the search for the best answer alone; a beam search can stop earlier then."""
    return dataclasses.replace(search, n_best=1) if hasattr(search, "n_best") else search


class BatchInference:
    """Compiled inference of one model. What was compiled is kept, for each search once.

    The model's weights are read at each call: training it further changes the answers.

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
            sources, max_lengths, search: as of `search`, of all sources.
            batch_size: most sources in a batch.
            max_positions: most positions of source and answer that are searched at a time, those
                of all rows of the search counted, but for the source's EOS; a source that needs
                more is alone.
            num_streams: batches that are searched at the same time, each by a thread of its own;
                unless the search draws, a batch then has at most an even share of the sources.
                Where the memory is too small, fewer batches are.
            **rows: `prefixes` and `constraint_numbers`, as of `search`, of all sources.

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
        if not hasattr(search, "seed"):  # What is drawn depends on the batch.
            # Even shares, and no more memory than one stream takes.
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
            max_lengths: list of int, the most tokens of each answer, EOS included.
            search: a search of `keras_transformer.decoding`.
            seed_offset: added to the seed of a search that has one, so that the batches of one
                call draw different numbers.
            prefixes: list of lists of ids that the answers begin with; None for no beginnings.
            constraint_numbers: list of int for `make_constraint`; None for no constraint.

        Returns:
            `SearchResult` of NumPy arrays.
        """
        # An int where shapes have to be static (`sizes` below), otherwise a tensor.
        options = {"max_length": _rounded(max(max_lengths))}
        compiled_search = search
        if hasattr(search, "seed"):
            # The seed is an input, not a constant: another seed is not compiled anew.
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
        limits = _filled_up(max_lengths, len(source))  # rows that only fill it up end at once
        result = self._compiled[key](source=source, max_lengths=_tensor(limits), **options)
        return SearchResult(*(ops.convert_to_numpy(part)[:num_rows] for part in result))

    def log_probabilities(self, sources, targets) -> tuple[np.ndarray, np.ndarray]:
        """Returns the plain log-probabilities of given answers, EOS counted.

        Args:
            sources: list of lists of ids, with EOS.
            targets: list of lists of ids, without BOS and EOS.

        Returns:
            Of all tokens of an answer, float `[batch]`, and of each, float `[batch, length]`, 0 on
            padding.
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
        """Returns how much each token of given answers looks at each of the source's.

        Args:
            sources: list of lists of ids, with EOS.
            targets: list of lists of ids, without BOS and EOS.
            layer: block of the decoder.

        Returns:
            Float `[batch, length + 1, source length]`: in row t the mean over the heads at the
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
        """Compiles a function of int32 tensors, to call by name; ranks by names of arguments."""
        if keras.config.backend() != "tensorflow":
            return compile_search(function, self.model.variables, sizes=("max_length",))
        import tensorflow as tf

        # With a signature one trace serves all shapes, from the first call on.
        signature = {
            name: tf.TensorSpec([None] * rank, tf.int32, name) for name, rank in ranks.items()
        }
        return tf.function(function, autograph=False).get_concrete_function(**signature)


def _in_streams(function: Callable, items: Iterable, num_streams: int) -> Iterator:
    """What a function gives for each item, in their order, several worked on at a time."""
    if num_streams == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(num_streams) as executor:
        # Whoever stops reading, as Ctrl-C does, does not wait for the rest: `map` cancels it.
        yield from executor.map(function, items)


def padded(rows: Sequence[Sequence[int]], max_length: int | None = None) -> np.ndarray:
    """Pads rows of ids to int32 `[batch, length]`; on JAX to a shape of a small lattice.

    Args:
        rows: the ids.
        max_length: the model's learned positions, which padding must not pass; None for none.
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
    """int32 `[num_rows]`: the values, and 1 behind them."""
    return np.concatenate([values, np.ones(num_rows - len(values))]).astype("int32")


def _rounded(length):
    if keras.config.backend() != "jax":
        return int(length)
    return -(-int(length) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def _tensor(array):
    return ops.convert_to_tensor(array, dtype="int32")
