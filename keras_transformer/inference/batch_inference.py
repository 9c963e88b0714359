"""Compiled search, scores and attention for padded batches of token ids."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import ForcedPrefix, SearchResult, compile_search
from keras_transformer.inference import memory
from keras_transformer.inference.shortlist import Shortlist
from keras_transformer.layers.checks import check_positive_integer
from keras_transformer.models.cross_entropy import cross_entropy

# Source lengths are rounded up to a multiple, because each shape compiles a function on JAX and a
# oneDNN kernel on TensorFlow. On JAX, answer lengths are too, and numbers of rows to powers of 2.
_LENGTH_MULTIPLE = 32 if keras.config.backend() == "jax" else 8


def search_ids(model, source, max_lengths, search, max_length=None, token_ids=None, **options):
    """Encodes the source once and searches, as one function to compile or export.

    `source` is int32 `[batch, length]` with EOS; `max_lengths` is int32 `[batch]` and counts EOS.
    `max_length` is the length of the result, an int where shapes must be static; None for the
    largest of `max_lengths`. `token_ids` are from a `Shortlist`; None for the whole vocabulary.
    """
    if max_length is None:
        max_length = ops.max(max_lengths)
    state = model.start_decoding(source, search.width, max_length, token_ids)
    options |= {"bos_id": BOS_ID, "eos_id": EOS_ID, "pad_id": PAD_ID}
    options["keep_sentences"] = model.keep_sentences
    if token_ids is None:
        return search(model.decode_step, state, max_lengths, max_length, **options)
    # Constraints and sampling see the whole vocabulary.
    needs_all = search.constraints or options.get("constraints") or hasattr(search, "seed")
    if needs_all:
        size = model.config.output_vocab_size
        num_columns = ops.shape(token_ids)[0]
        columns = ops.scatter_update(
            ops.full((size,), num_columns, dtype="int32"),
            ops.expand_dims(token_ids, 1),
            ops.arange(num_columns, dtype="int32"),
        )  # [vocabulary]; the other tokens have the last column, -inf

    def step(tokens, rows, state):
        if needs_all:
            logits, state = model.decode_step(tokens, rows, state)
            logits = ops.pad(logits, [[0, 0], [0, 1]], constant_values=float("-inf"))
            return ops.take(logits, columns, axis=1), state
        return model.decode_step(ops.take(token_ids, tokens), rows, state)

    result = search(step, state, max_lengths, max_length, **options)
    return result if needs_all else result._replace(tokens=ops.take(token_ids, result.tokens))


def one_answer(search):
    """Returns the search, with `n_best=1` if it finds several, so that it can stop earlier."""
    several = getattr(search, "n_best", 1) > 1
    return dataclasses.replace(search, n_best=1) if several else search


class BatchInference:
    """Compiled inference with one model; each search is compiled once.

    Each call reads the current weights, so further training changes the answers.
    `make_constraint` returns a constraint from `constraint_numbers`, int32 `[batch]`.

    Attributes:
        shortlist: `Shortlist` of the tokens that searches choose from; None for all tokens.
    """

    def __init__(self, model, make_constraint: Callable | None = None):
        self.model = model
        self.shortlist: Shortlist | None = None
        self._make_constraint = make_constraint
        self._compiled: dict[Any, Callable] = {}
        self._compiling = threading.Lock()

    def search_batches(
        self, sources, max_lengths, search, batch_size, max_positions, num_streams=1, **rows
    ) -> Iterator[tuple[list[int], SearchResult]]:
        """Yields the indices of the sources of each batch, largest first, and its `SearchResult`.

        `batch_size` is the maximum number of sources in a batch; None for `default_batch_size`.
        `max_positions` limits the positions of sources (without EOS) and answers in a batch, times
        the search's width. At most `num_streams` threads search, as many as fit into memory. Raises
        a `UserError` if none fits.
        """
        sizes = [
            search.width * (len(source) - 1 + limit)
            for source, limit in zip(sources, max_lengths, strict=True)
        ]
        if batch_size is None:
            batch_size = memory.default_batch_size(search.width)
        check_positive_integer("batch_size", batch_size)
        check_positive_integer("num_streams", num_streams)
        if sizes:
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            num_streams = memory.streams_that_fit(
                self.model, search, len(sources[largest]), max_lengths[largest], num_streams
            )
        if not hasattr(search, "seed"):  # Samples depend on the batches, which must not change.
            # Each stream gets an equal share of the texts and of the memory of one batch.
            batch_size = min(batch_size, max(1, -(-len(sizes) // num_streams)))
            max_positions //= num_streams
        rows |= {"sources": sources, "max_lengths": max_lengths}

        def search_batch(numbered):
            number, indices = numbered
            batch = {name: [values[index] for index in indices] for name, values in rows.items()}
            return indices, self.search(search=search, seed_offset=number, **batch)

        batches = enumerate(memory.cut_batches(sizes, batch_size, max_positions))
        if num_streams == 1:
            yield from map(search_batch, batches)
            return
        with ThreadPoolExecutor(num_streams) as executor:
            # If the caller stops (Ctrl-C), `map` cancels the remaining batches.
            yield from executor.map(search_batch, batches)

    def search(
        self, sources, max_lengths, search, seed_offset=0, prefixes=None, constraint_numbers=None
    ) -> SearchResult:
        """Returns the `SearchResult` of one batch, as NumPy arrays.

        Sources are ids with EOS, and `max_lengths` count EOS; `prefixes` are ids that the answers
        begin with. `seed_offset` is added to the seed of a search that samples.
        """
        inputs = {"source": self._padded(sources)}
        num_rows = len(inputs["source"])
        inputs["max_lengths"] = _filled_up(max_lengths, num_rows)  # Padding rows end at once.
        # `run` gets an int where shapes must be static (`sizes` below), on TensorFlow a tensor.
        max_length = int(max(max_lengths))
        is_static = keras.config.backend() == "jax"
        inputs["max_length"] = rounded_up(max_length) if is_static else max_length
        if hasattr(search, "seed"):
            # The seed is an input, so that another seed needs no compilation.
            inputs["seed"] = np.int32((search.seed + seed_offset) % 2**31)
            search = dataclasses.replace(search, seed=0)
        if prefixes is not None and any(prefixes):
            inputs["prefixes"] = self._padded(prefixes)
        if self.shortlist is not None:
            token_ids = self.shortlist.token_ids(sources, prefixes or ())
            if token_ids is not None:
                inputs["token_ids"] = ops.convert_to_tensor(token_ids)
        if constraint_numbers is not None:
            inputs["constraint_numbers"] = _filled_up(constraint_numbers, num_rows)

        def run(**options):
            constraints = []
            if "prefixes" in options:
                constraints.append(ForcedPrefix(options.pop("prefixes"), pad_id=PAD_ID))
            if self._make_constraint is not None and "constraint_numbers" in options:
                constraints.append(self._make_constraint(options.pop("constraint_numbers")))
            return search_ids(self.model, search=search, constraints=constraints, **options)

        return SearchResult(*self._run((search, *inputs), run, len(sources), **inputs))

    def log_probabilities(self, sources, targets, batch_size, progress) -> Iterator[tuple]:
        """Yields the index of each pair, and the log-probabilities of its target and of each token.

        Sources and targets are ids without BOS and EOS; the log-probabilities include EOS.
        """

        def score(source, target, labels):
            logits = self.model({"source": source, "target": target}, training=False)
            log_probabilities = -cross_entropy(labels, logits)
            log_probabilities = ops.where(ops.not_equal(labels, PAD_ID), log_probabilities, 0.0)
            return ops.sum(log_probabilities, axis=1), log_probabilities

        logits = memory.MAX_BATCH_LOGITS // self.model.config.output_vocab_size
        max_positions = min(logits, memory.MAX_BATCH_TOKENS)
        pairs = sources, targets, batch_size, max_positions, progress
        return self._run_pairs("score", score, *pairs)

    def cross_attention(self, sources, targets, layer, batch_size, progress) -> Iterator[tuple]:
        """Yields the index of each pair, and the attention from its target to its source.

        Float `[target length, source length]`, padded: row t is the mean over a decoder block's
        heads at the position that predicts token t. Sources and targets: see `log_probabilities`.
        """

        def attention(source, target, **_):
            scores = self.model.attention_scores(source, target)["cross"][layer]
            return ops.mean(ops.cast(scores, "float32"), axis=1)

        pairs = sources, targets, batch_size, memory.MAX_ALIGNED_TOKENS, progress
        return self._run_pairs(("attention", layer), attention, *pairs)

    def _run_pairs(self, key, function, sources, targets, batch_size, max_positions, progress):
        """Yields the index of each pair of ids, and its results of `function`; works in batches."""
        sizes = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
        num_done = 0
        for indices in memory.cut_batches(sizes, batch_size, max_positions):
            found = self._run(
                key,
                function,
                len(indices),
                source=self._padded([[*sources[index], EOS_ID] for index in indices]),
                target=self._padded([[BOS_ID, *targets[index]] for index in indices]),
                labels=self._padded([[*targets[index], EOS_ID] for index in indices]),
            )
            yield from zip(indices, *found, strict=True)
            num_done += len(indices)
            if progress is not None:
                progress(num_done, len(sizes))

    def _run(self, key, function, num_rows, **inputs):
        """Returns the results of a function without padding rows; compiles it once for each key."""
        with self._compiling:
            if key not in self._compiled:
                self._compiled[key] = _compile(function, inputs, self.model.variables)
        found = keras.tree.flatten(self._compiled[key](**inputs))
        return [ops.convert_to_numpy(part)[:num_rows] for part in found]

    def _padded(self, rows: Sequence[Sequence[int]]):
        """Pads rows of ids to int32 `[batch, length]`, with sizes that are rounded up."""
        num_rows, length = len(rows), rounded_up(max(map(len, rows)))
        if keras.config.backend() == "jax":
            num_rows = 2 ** (num_rows - 1).bit_length()
        if self.model.config.max_length is not None:  # the number of learned positions
            length = min(length, self.model.config.max_length)
        rows = [*rows, *[[]] * (num_rows - len(rows))]
        array = keras.utils.pad_sequences(rows, length, padding="post", value=PAD_ID)
        return ops.convert_to_tensor(array)


def _compile(function, inputs, variables):
    if keras.config.backend() != "tensorflow":
        return compile_search(function, variables, sizes=("max_length",))
    import tensorflow as tf

    # With this signature, one trace serves all shapes.
    signature = {
        name: tf.TensorSpec([None] * np.ndim(value), tf.int32, name)
        for name, value in inputs.items()
    }
    return tf.function(function, autograph=False).get_concrete_function(**signature)


def _filled_up(values, num_rows):
    """Returns int32 `[num_rows]`: the values, then ones."""
    padding = np.ones(num_rows - len(values))
    return ops.convert_to_tensor(np.concatenate([values, padding]), dtype="int32")


def rounded_up(length: Any) -> Any:
    """Rounds a length (an int or a tensor) up to the length that sources are padded to."""
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
