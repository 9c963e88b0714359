"""Compiled searches, scores and attention of padded batches of a bounded size."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_positive_integer
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer
from keras_transformer.decoding import (
    BeamSearch,
    Constraint,
    ForcedPrefix,
    RequiredTerms,
    SearchResult,
)
from keras_transformer.decoding.search import CompiledFunctions, Search
from keras_transformer.errors import UserError
from keras_transformer.inference.glossary import joins_of_pieces
from keras_transformer.inference.shortlist import Shortlist
from keras_transformer.layers.effective_weights import all_maps
from keras_transformer.layers.int8_products import ConstantKernels
from keras_transformer.layers.tensors import Tensor

# Source lengths are rounded up to a multiple, because each shape compiles a function on JAX and a
# oneDNN kernel on TensorFlow. On JAX, answer lengths are too, and batch sizes to powers of 2.
_LENGTH_MULTIPLE = 32 if keras.config.backend() == "jax" else 8
NOT_IN_ENGINES = "CTranslate2 has no glossaries and shortlists: search in Keras."
# Maximum number of padded source and target positions in a batch, over all hypotheses.
MAX_BATCH_TOKENS = 32_768
# Default maximum of sentences in a batch to search, and of hypotheses: sentences times beams.
_MAX_SENTENCES, _MAX_HYPOTHESES = 128, 256
_LEAST_POSITIONS = 4_096  # of a stream, if a batch may have as many
# Of sentences with terms: minimum numbers of beams, which hypotheses with 0, 1, 2, ... ids of terms
# share; and a factor of the length penalty, because long answers spread the cost of a term.
BEAMS_WITH_TERMS, _PENALTY_WITH_TERMS = (10, 32), 0.5
# Between the seeds of two batches, so that neighboring seeds do not share samples.
BATCH_OF_SEED = 1_000_003


def encode_and_search(
    model, source, max_lengths, search, max_length=None, token_ids=None, **options
):
    """Encodes the source once and searches, as one function to compile or export.

    `source` is int32 `[batch, length]` with EOS; `max_lengths` is int32 `[batch]` and counts EOS.
    `max_length` is the length of the result, an int where shapes must be static; None for the
    largest of `max_lengths`. `token_ids` are from a `Shortlist`; None for the whole vocabulary.
    """
    if max_length is None:
        max_length = ops.max(max_lengths)
    state = model.start_decoding(source, search.width, max_length)
    options |= {"bos_id": BOS_ID, "eos_id": EOS_ID, "pad_id": PAD_ID}
    options["keep_sentences"] = model.keep_sentences
    if token_ids is None:
        return search(model.decode_step, state, max_lengths, max_length, **options)
    # Constraints and sampling see the whole vocabulary.
    needs_all = search.constraints or options.get("constraints") or search.is_random
    output_embeddings = model.output_embeddings(token_ids)
    if needs_all:
        size = model.config.output_vocab_size
        num_columns = ops.shape(token_ids)[0]
        columns = ops.scatter_update(
            ops.full((size,), num_columns, dtype="int32"),
            ops.expand_dims(token_ids, 1),
            ops.arange(num_columns, dtype="int32"),
        )  # [vocabulary]; the other tokens have the last column, -inf

    def step(tokens, parents, state):
        if not needs_all:
            tokens = ops.take(token_ids, tokens)
        logits, state = model.decode_step(tokens, parents, state, output_embeddings)
        if needs_all:
            logits = ops.pad(logits, [[0, 0], [0, 1]], constant_values=float("-inf"))
            logits = ops.take(logits, columns, axis=1)
        return logits, state

    result = search(step, state, max_lengths, max_length, **options)
    return result if needs_all else result._replace(tokens=ops.take(token_ids, result.tokens))


def one_answer(search):
    """Returns the search, with `n_best=1` if it finds several, so that it can stop earlier."""
    finds_several = getattr(search, "n_best", 1) > 1
    return dataclasses.replace(search, n_best=1) if finds_several else search


def search_with_terms(search: Search, num_beams: int) -> BeamSearch:
    """Returns the search, with more beams, for sentences whose answers must contain terms."""
    if search.is_random:
        rule = "Answers that must contain terms cannot be sampled; use a beam search"
        raise UserError(f"{rule}. Received: {type(search).__name__}")
    if not isinstance(search, BeamSearch):
        search = BeamSearch(constraints=search.constraints)
    beam_size = max(search.beam_size, num_beams)
    length_penalty = search.length_penalty * _PENALTY_WITH_TERMS
    return dataclasses.replace(search, beam_size=beam_size, length_penalty=length_penalty)


def _beams_with(num_ids):
    """Returns the minimum number of beams for a sentence with `num_ids` ids of terms."""
    few, many = BEAMS_WITH_TERMS
    return 0 if not num_ids else few if num_ids < few else many


def make_constraints(
    tokenizer: Tokenizer,
    of_task: Constraint | None,
    prefixes: Tensor | None,
    num_given: int,
    terms: Tensor | None,
) -> list[Constraint]:
    """Returns the constraint of the task, the prefixes and the terms, those that are given.

    `prefixes` is int32 `[batch, length]`; their first `num_given` ids cost nothing. `terms` is
    int32 `[batch, terms, length]`.
    """
    constraints, start = [] if of_task is None else [of_task], None
    if prefixes is not None:
        constraints.append(ForcedPrefix(prefixes, PAD_ID, num_given))
        start = ops.sum(ops.cast(ops.not_equal(prefixes, PAD_ID), "int32"), axis=1)
    if terms is not None:
        constraints.append(RequiredTerms(terms, start, PAD_ID, joins_of_pieces(tokenizer)))
    return constraints


class BatchInference:
    """Compiled inference with one model; each search is compiled once.

    Each call reads the current weights, so further training changes the answers, as quantization
    and LoRA do. `tokenizer` is that of the target. `make_constraint` returns a constraint from
    `constraint_numbers`, int32 `[batch]`.

    Attributes:
        shortlist: `Shortlist` of the tokens that searches choose from; None for all tokens.
        engine: Searches instead of Keras, such as a `CTranslate2Engine`; None for Keras.
    """

    def __init__(self, model, tokenizer: Tokenizer, make_constraint: Callable | None = None):
        self.model, self._tokenizer = model, tokenizer
        self.shortlist: Shortlist | None = None
        self.engine: Any = None
        self._make_constraint = make_constraint
        self._compiled = CompiledFunctions(model)
        self._kernels: ConstantKernels | None = None

    def use_constant_kernels(self) -> None:
        """Makes products of matrices in int8 fast, which must not change from now on."""
        self._kernels = ConstantKernels(all_maps(self.model))

    def search_batches(
        self,
        sources,
        max_lengths,
        search,
        batch_size,
        max_positions,
        num_streams=1,
        num_given=0,
        **per_source,
    ) -> Iterator[tuple[list[int], SearchResult]]:
        """Yields the indices of the sources of each batch, largest first, and its `SearchResult`.

        `sources` are ids without EOS, or None for a source that is not searched. `batch_size` is
        the maximum number of sources in a batch; `max_positions` limits the positions of sources
        and answers in a batch, times the search's width. `num_streams` threads search at the same
        time. `num_given` is that of `search_batch`. `per_source` are its other arguments by name,
        each a list with a value for every source, or None.
        """
        check_positive_integer("batch_size", 1 if batch_size is None else batch_size)
        check_positive_integer("num_streams", num_streams)
        given = {name: values for name, values in per_source.items() if values is not None}
        terms = given.get("terms") or [()] * len(sources)
        batches: list[tuple[Search, list[int]]] = []
        # Sentences with terms need more beams; the others are searched as if there were no terms.
        beams_of = [_beams_with(sum(map(len, terms_of_source))) for terms_of_source in terms]
        for num_beams in sorted(set(beams_of)):
            lengths = {
                index: len(ids) + max_lengths[index]
                for index, ids in enumerate(sources)
                if ids is not None and beams_of[index] == num_beams
            }
            if lengths:
                used = search_with_terms(search, num_beams) if num_beams else search
                cut = _cut_lengths(lengths, used, batch_size, max_positions, num_streams)
                batches += [(used, indices) for indices in cut]

        def search_one(numbered):
            number, (used, indices) = numbered
            options = {name: [values[index] for index in indices] for name, values in given.items()}
            ids = [[*sources[index], EOS_ID] for index in indices]
            limits = [max_lengths[index] for index in indices]
            options |= {"seed_offset": number, "num_given": num_given}
            return indices, self.search_batch(ids, limits, used, **options)

        if num_streams == 1:
            yield from map(search_one, enumerate(batches))
            return
        with ThreadPoolExecutor(num_streams) as executor:
            # If the caller stops (Ctrl-C), `map` cancels the remaining batches.
            yield from executor.map(search_one, enumerate(batches))

    def search_batch(
        self,
        sources,
        max_lengths,
        search,
        seed_offset=0,
        prefixes=None,
        terms=None,
        constraint_numbers=None,
        num_given=0,
    ) -> SearchResult:
        """Returns the `SearchResult` of one batch, as NumPy arrays.

        Sources are ids with EOS, and `max_lengths` count EOS; `prefixes` are ids that the answers
        begin with, of which the first `num_given` cost nothing, and `terms` are lists of ids that
        they contain. `seed_offset` is added to the seed of a search that samples.
        """
        if self.engine is not None:
            if self.shortlist is not None or any(terms or ()):
                raise UserError(NOT_IN_ENGINES)
            return self.engine.search(sources, max_lengths, search, prefixes)
        inputs = {"source": self._padded(sources)}
        batch_size = len(inputs["source"])
        inputs["max_lengths"] = _pad_with_ones(max_lengths, batch_size)  # Padding ends at once.
        # On JAX this stays an int, because shapes are static there; on TensorFlow it becomes a
        # tensor (`_run` names it as a size).
        max_length = int(max(max_lengths))
        is_static = keras.config.backend() == "jax"
        inputs["max_length"] = rounded_up(max_length) if is_static else max_length
        if search.is_random:
            # The seed is an input, so that another seed needs no compilation.
            inputs["seed"] = np.int32((search.seed + BATCH_OF_SEED * seed_offset) % 2**31)
            search = dataclasses.replace(search, seed=0)
        if prefixes is not None and any(prefixes):
            inputs["prefixes"] = self._padded(prefixes)
        if self.shortlist is not None:
            others = [*(prefixes or ()), *(ids for group in terms or () for ids in group)]
            token_ids = self.shortlist.token_ids(sources, others)
            if token_ids is not None:
                inputs["token_ids"] = ops.convert_to_tensor(token_ids)
        if terms is not None and any(terms):
            inputs["terms"] = self._padded_terms(terms, batch_size)
        if constraint_numbers is not None:
            inputs["constraint_numbers"] = _pad_with_ones(constraint_numbers, batch_size)

        def run(**options):
            of_task = None
            if self._make_constraint is not None and "constraint_numbers" in options:
                of_task = self._make_constraint(options.pop("constraint_numbers"))
            prefixes, terms = options.pop("prefixes", None), options.pop("terms", None)
            constraints = make_constraints(self._tokenizer, of_task, prefixes, num_given, terms)
            return encode_and_search(self.model, search=search, constraints=constraints, **options)

        return SearchResult(*self._run((search, num_given, *inputs), run, len(sources), **inputs))

    def _padded_terms(self, terms, batch_size):
        """Returns the ids of the terms of each sentence, int32 `[batch, terms, length]`."""
        number = 2 ** (max(map(len, terms)) - 1).bit_length()  # Few shapes are compiled.
        filled = [[*group, *[[]] * (number - len(group))] for group in terms]
        filled += [[[]] * number] * (batch_size - len(filled))
        flat = self._padded([ids for group in filled for ids in group])  # [batch * terms, length]
        return ops.reshape(flat, (batch_size, number, -1))

    def run_pairs(self, key, function, sources, targets, batch_size, max_positions, progress):
        """Yields the index of each pair of ids, and its results of a function.

        Sources and targets are ids without BOS and EOS. `function(source, target, labels)` gets
        padded ids of a batch, int32 `[batch, length]`; it is compiled once for each key.
        """
        pairs = zip(sources, targets, strict=True)
        sizes = {index: max(map(len, pair)) + 1 for index, pair in enumerate(pairs)}
        num_done = 0
        for indices in cut_batches(sizes, batch_size, max_positions):
            inputs = {
                "source": self._padded([[*sources[index], EOS_ID] for index in indices]),
                "target": self._padded([[BOS_ID, *targets[index]] for index in indices]),
                "labels": self._padded([[*targets[index], EOS_ID] for index in indices]),
            }
            results = self._run(key, function, len(indices), **inputs)
            yield from zip(indices, *results, strict=True)
            num_done += len(indices)
            if progress is not None:
                progress(num_done, len(sizes))

    def _run(self, key, function, batch_size, **inputs):
        """Returns the results of a function for the first `batch_size` entries.

        It is compiled once for each key.
        """
        ranks = {name: np.ndim(value) for name, value in inputs.items()}
        if self._kernels is not None:
            function = self._kernels.used_in(function)
        key = key, self._kernels  # Copies of this object share the compiled functions.
        compiled = self._compiled.get(key, function, ("max_length",), ranks)
        results = keras.tree.flatten(compiled(**inputs))
        return [ops.convert_to_numpy(result)[:batch_size] for result in results]

    def _padded(self, ids: Sequence[Sequence[int]]):
        """Pads lists of ids to int32 `[batch, length]`, with sizes that are rounded up."""
        batch_size, length = len(ids), rounded_up(max(map(len, ids)))
        if keras.config.backend() == "jax":
            batch_size = 2 ** (batch_size - 1).bit_length()
        if self.model.config.max_length is not None:  # It is the number of learned positions.
            length = min(length, self.model.config.max_length)
        ids = [*ids, *[[]] * (batch_size - len(ids))]
        array = keras.utils.pad_sequences(ids, length, padding="post", value=PAD_ID)
        return ops.convert_to_tensor(array)


def _cut_lengths(lengths, search, batch_size, max_positions, num_streams):
    """Returns `cut_batches` of sentences, whose `lengths` are those of source and answer."""
    batch_size = batch_size or default_batch_size(search.width)
    if not search.is_random:  # Samples depend on the batches, which must not change.
        # Each stream gets an equal share of the texts, and its share of the positions.
        batch_size = min(batch_size, max(1, -(-len(lengths) // num_streams)))
        max_positions = positions_of_stream(max_positions, num_streams)
    sizes = {index: search.width * length for index, length in lengths.items()}
    return cut_batches(sizes, batch_size, max_positions)


def positions_of_stream(max_positions: int, num_streams: int) -> int:
    """Returns the share of one stream in the positions that are searched at once.

    It is at least 4,096, if `max_positions` is: products of a single sentence are slow.
    """
    return max(max_positions // num_streams, min(max_positions, _LEAST_POSITIONS))


def _pad_with_ones(values, batch_size):
    """Returns int32 `[batch_size]`: the values, then ones."""
    padding = np.ones(batch_size - len(values))
    return ops.convert_to_tensor(np.concatenate([values, padding]), dtype="int32")


def rounded_up(length: Any) -> Any:
    """Rounds a length (an int or a tensor) up to the length that sources are padded to."""
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def default_batch_size(width: int) -> int:
    """Returns how many sentences of `width` hypotheses to search at once; more are no faster."""
    return max(1, min(_MAX_SENTENCES, _MAX_HYPOTHESES // width))


def cut_batches(sizes: Mapping[int, int], max_number: int, max_total: int) -> list[list[int]]:
    """Returns batches of the keys of `sizes`, largest first, of limited padded size.

    `max_total` limits the number in a batch times the largest size; a larger one is a batch alone.

    Example:

    >>> cut_batches({0: 1, 1: 9, 2: 2, 3: 3}, max_number=2, max_total=10)
    [[1], [3, 2], [0]]
    """
    check_positive_integer("batch_size", max_number)
    batches: list[list[int]] = []
    for index in sorted(sizes, key=lambda index: -sizes[index]):
        largest = sizes[batches[-1][0]] if batches else 0
        is_full = not batches or len(batches[-1]) >= max_number
        if is_full or (len(batches[-1]) + 1) * largest > max_total:
            batches.append([])
        batches[-1].append(index)
    return batches
