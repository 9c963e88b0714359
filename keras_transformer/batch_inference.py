"""Searching and scoring padded batches of token ids with a model, each one compiled function."""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import SearchResult, compile_search
from keras_transformer.layers.checks import check_positive_integer

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
        **search_options,
    )


def one_answer(search):
    """Returns the search for the best answer alone; a beam search can stop earlier then."""
    return dataclasses.replace(search, n_best=1) if hasattr(search, "n_best") else search


def cut_batches(sizes: Sequence[int], max_rows: int, max_total: int) -> list[list[int]]:
    """Sorts rows by size, largest first, and cuts them into batches of bounded padded size.

    Args:
        sizes: size of each row, such as its number of tokens.
        max_rows: most rows in a batch.
        max_total: most rows times largest size in a batch; a row larger than that is alone.

    Returns:
        Lists of indices into `sizes`, each index once.

    Example:

    >>> cut_batches([1, 9, 2, 3], max_rows=2, max_total=10)
    [[1], [3, 2], [0]]
    """
    check_positive_integer("batch_size", max_rows)
    batches = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        largest = sizes[batches[-1][0]] if batches else 0
        is_full = not batches or len(batches[-1]) >= max_rows
        if is_full or (len(batches[-1]) + 1) * largest > max_total:
            batches.append([])
        batches[-1].append(index)
    return batches


class BatchInference:
    """Compiled inference of one model. What was compiled is kept, for each search once.

    The model's weights are read at each call: training it further changes the answers.

    Args:
        model: a `Transformer`.
    """

    def __init__(self, model):
        self.model = model
        self._compiled = {}

    def search(self, sources, max_lengths, search, seed_offset=0) -> SearchResult:
        """Searches for the answers of one batch.

        Args:
            sources: list of lists of ids, with EOS.
            max_lengths: list of int, the most tokens of each answer, EOS included.
            search: a search of `keras_transformer.decoding`.
            seed_offset: added to the seed of a search that has one, so that the batches of one
                call draw different numbers.

        Returns:
            `SearchResult` of NumPy arrays.
        """
        # An int where shapes have to be static (`sizes` below), otherwise a tensor.
        options = {"max_length": _rounded(max(max_lengths))}
        key = search
        if hasattr(search, "seed"):
            # The seed is an input, not a constant: another seed is not compiled anew.
            options["seed"] = np.int32((search.seed + seed_offset) % 2**31)
            key = dataclasses.replace(search, seed=0)
        if key not in self._compiled:
            self._compiled[key] = self._compile_search(key)
        num_rows = len(sources)
        source = padded(sources)
        limits = np.ones(len(source), "int32")  # rows that only fill up the shape end at once
        limits[:num_rows] = max_lengths
        result = self._compiled[key](_tensor(source), _tensor(limits), **options)
        return SearchResult(*(ops.convert_to_numpy(part)[:num_rows] for part in result))

    def log_probabilities(self, sources, targets) -> np.ndarray:
        """Returns the plain log-probability of given answers, EOS counted: float `[batch]`.

        Args:
            sources: list of lists of ids, with EOS.
            targets: list of lists of ids, without BOS and EOS.
        """
        if "score" not in self._compiled:
            self._compiled["score"] = self._compile(self._score, ranks=(2, 2, 2))
        inputs = padded([[BOS_ID, *ids] for ids in targets])
        labels = padded([[*ids, EOS_ID] for ids in targets])
        arguments = (_tensor(array) for array in (padded(sources), inputs, labels))
        return ops.convert_to_numpy(self._compiled["score"](*arguments))[: len(sources)]

    def _score(self, source, target, labels):
        logits = self.model({"source": source, "target": target}, training=False)
        chosen = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)
        log_probabilities = ops.squeeze(chosen, -1) - ops.logsumexp(logits, axis=-1)
        return ops.sum(ops.where(ops.not_equal(labels, PAD_ID), log_probabilities, 0.0), axis=1)

    def _compile_search(self, search):
        if hasattr(search, "seed"):

            def run(source, max_lengths, max_length, seed):
                return search_ids(self.model, source, max_lengths, search, max_length, seed=seed)

            return self._compile(run, ranks=(2, 1, 0, 0))

        def run(source, max_lengths, max_length):
            return search_ids(self.model, source, max_lengths, search, max_length)

        return self._compile(run, ranks=(2, 1, 0))

    def _compile(self, function, ranks):
        """Compiles a function of int32 tensors of the given ranks."""
        if keras.config.backend() != "tensorflow":
            return compile_search(function, self.model.variables, sizes=("max_length",))
        import tensorflow as tf

        # With a signature one trace serves all shapes, from the first call on.
        signature = [tf.TensorSpec([None] * rank, tf.int32) for rank in ranks]
        compiled = tf.function(function, input_signature=signature, autograph=False)
        return compiled.get_concrete_function()


def padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Pads rows of ids to int32 `[batch, length]`; on JAX to a shape of a small lattice."""
    num_rows = len(rows)
    if keras.config.backend() == "jax":
        num_rows = 2 ** (num_rows - 1).bit_length()
    array = np.full((num_rows, _rounded(max(map(len, rows)))), PAD_ID, "int32")
    for row, ids in zip(array, rows, strict=False):
        row[: len(ids)] = ids
    return array


def _rounded(length):
    if keras.config.backend() != "jax":
        return int(length)
    return -(-int(length) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def _tensor(array):
    return ops.convert_to_tensor(array, dtype="int32")
