"""Base of the searches: their call, their result, their constraints and their dict form."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import keras
from keras import ops

from keras_transformer.decoding.constraints.constraint import CONSTRAINTS, Constraint, Generated
from keras_transformer.decoding.constraints.saved_constraints import SavedConstraint
from keras_transformer.decoding.step import Step, call_step, check_static_vocabulary, log_sum_exp
from keras_transformer.layers.caches import take_rows
from keras_transformer.layers.checks import check_argument, check_positive_integer
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.shapes import check_rank
from keras_transformer.settings.setting import Settings, check_member


class SearchResult(NamedTuple):
    """Hypotheses of a batch of sentences, best first (samples: in the order drawn).

    `n` is 1 for a greedy search, `n_best` for a beam search, `num_samples` for sampling. If a
    sentence has fewer than `n` hypotheses, the other places have a score of minus infinity, length
    0 and only padding.

    Attributes:
        tokens: int32 `[batch, n, max_length]`, without BOS, EOS kept, padding after it.
        scores: float32 `[batch, n]`, by which the hypotheses are ranked (beam search:
            log-probability over length penalty; otherwise the log-probability).
        log_probabilities: float32 `[batch, n]`, the plain sum over the tokens, EOS included.
        lengths: int32 `[batch, n]`, number of tokens, EOS included.

    Scores are float64 where the state of the search holds float64 tensors.

    Example:

    >>> from keras_transformer.decoding import SearchResult
    >>> result = SearchResult(tokens=[[[7, 3]]], scores=[[-0.5]], log_probabilities=[[-0.5]],
    ...                       lengths=[[2]])
    >>> result.lengths
    [[2]]
    """

    tokens: Any
    scores: Any
    log_probabilities: Any
    lengths: Any


class SearchInputs(NamedTuple):
    """Checked inputs of one search; `Search.__call__` describes the fields without a comment."""

    step: Step
    state: Any
    limits: Tensor  # int32 [batch]: each sentence's maximum length, at most `max_length`
    max_length: Any
    bos_id: int
    eos_id: int
    pad_id: int
    keep_sentences: Callable | None
    dtype: str  # of the scores
    normalizer: Callable = log_sum_exp  # by how much the step's logits exceed log-probabilities
    is_constrained: bool = False  # then a hypothesis may have no allowed next token

    def constrained(self, constraints: tuple[Constraint, ...], width: int) -> Self:
        """Returns the inputs with a step that follows constraints, for `width` rows a sentence."""
        if not constraints:
            return self
        max_length, max_lengths = self.max_length, ops.repeat(self.limits, width)  # [rows]
        tokens = ops.full((ops.shape(max_lengths)[0], max_length), self.pad_id, dtype="int32")
        start = {
            "model": self.state,
            "constraints": tuple(one.start(self.limits, width) for one in constraints),
            "max_lengths": max_lengths,
            "tokens": tokens,
            "length": ops.convert_to_tensor(0, dtype="int32"),
        }

        def constrained_step(last_tokens, rows, state):
            logits, model_state = call_step(
                self.step, last_tokens, rows, state["model"], self.dtype
            )
            check_static_vocabulary(logits)
            largest = ops.max(logits, axis=-1, keepdims=True)
            log_probabilities = logits - log_sum_exp(logits, largest)  # [rows, vocabulary]
            tokens, states, length = state["tokens"], state["constraints"], state["length"]
            if rows is not None:
                tokens, states = take_rows((tokens, states), rows)
            # In the first call the last tokens are BOS, which is not kept: no place is equal to -1.
            is_last = ops.equal(ops.arange(max_length, dtype="int32"), length - 1)  # [max_length]
            tokens = ops.where(is_last, ops.expand_dims(last_tokens, -1), tokens)
            generated = Generated(
                tokens, last_tokens, length, state["max_lengths"], log_probabilities, self.eos_id
            )
            new_states = []
            for constraint, own_state in zip(constraints, states, strict=True):
                own_state, log_probabilities = constraint(own_state, log_probabilities, generated)
                new_states.append(own_state)
            return log_probabilities, {
                **state,
                "model": model_state,
                "constraints": tuple(new_states),
                "tokens": tokens,
                "length": length + 1,
            }

        keep_model_sentences: Any = self.keep_sentences

        def keep_sentences_and_rows(state, sentences):
            rows = width * ops.expand_dims(sentences, 1) + ops.arange(width, dtype="int32")
            rows = ops.reshape(rows, (-1,))
            of_rows = {name: state[name] for name in ("constraints", "max_lengths", "tokens")}
            model_state = keep_model_sentences(state["model"], sentences)
            return {**state, "model": model_state, **take_rows(of_rows, rows)}

        return self._replace(
            step=constrained_step,
            state=start,
            keep_sentences=self.keep_sentences and keep_sentences_and_rows,
            is_constrained=True,
            normalizer=lambda log_probabilities, largest, places=None: ops.zeros_like(largest),
        )


class Search(Settings, family="search"):
    """Base of `BeamSearch`, `GreedySearch` and `Sampling`.

    Subclasses are frozen dataclasses with a field `constraints`, a property `width`, and a method
    `_search(inputs)`.
    """

    constraints: tuple

    def _search(self, inputs: SearchInputs) -> SearchResult:
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Number of rows of a sentence in the step's batch."""
        return 1

    def __call__(
        self,
        step: Step,
        state: Any,
        max_lengths: Tensor,
        max_length: Any,
        bos_id: int = 2,
        eos_id: int = 3,
        pad_id: int = 0,
        constraints: Sequence[Constraint] = (),
        keep_sentences: Callable | None = None,
    ) -> SearchResult:
        """Searches for continuations of BOS.

        Args:
            step: A `Step`. Searches other than `BeamSearch` call it with `rows=None`.
            state: State of the step before the first call, of `batch * width` rows.
            max_lengths: int32 `[batch]`, maximum number of tokens of each sentence, EOS included.
            max_length: Length of the result, an int or an int32 scalar; a static int where shapes
                must be static (JAX). It limits `max_lengths`.
            bos_id, eos_id, pad_id: Ids that begin, end and fill a hypothesis.
            constraints: Further constraints of this call, such as a `ForcedPrefix`.
            keep_sentences: `keep_sentences(state, sentences) -> state`, such as
                `Transformer.keep_sentences`, returns the part of the step's state that belongs to
                `sentences`, int32 `[kept]`. With it, finished sentences leave the batch when they
                are half of it or more, so later steps cost less. It is called then, and after 32
                steps without a call. It has no effect on JAX, and must be None under XLA, where
                shapes are static. None keeps all sentences to the end. The results agree up to
                rounding, but samples depend on the batch.

        Returns:
            A `SearchResult`.

        Raises:
            ValueError: If `max_lengths` is not `[batch]`, or `max_length` is below 1.
        """
        max_lengths = ops.cast(ops.convert_to_tensor(max_lengths), "int32")
        check_rank("max_lengths", max_lengths, "[batch]")
        if isinstance(max_length, int):
            check_positive_integer("max_length", max_length)
        limits, ids = ops.minimum(max_lengths, max_length), (bos_id, eos_id, pad_id)
        leaves = [leaf for leaf in keras.tree.flatten(state) if hasattr(leaf, "dtype")]
        dtypes = [keras.backend.standardize_dtype(leaf.dtype) for leaf in leaves]
        dtype = "float64" if "float64" in dtypes else "float32"
        inputs = SearchInputs(step, state, limits, max_length, *ids, keep_sentences, dtype)
        constraints = tuple(constraints)
        is_allowed = CONSTRAINTS.allows(constraints)
        check_argument(is_allowed, "constraints", CONSTRAINTS.words, constraints)
        return self._search(inputs.constrained((*self.constraints, *constraints), self.width))

    def to_dict(self) -> dict[str, Any]:
        for constraint in self.constraints:
            check_member(SavedConstraint, constraint)
        settings = super().to_dict()
        if not self.constraints:  # Older versions can then read the settings.
            del settings["constraints"]
        return settings

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        constraints = [SavedConstraint.from_dict(one) for one in values.get("constraints", ())]
        return super().from_dict({**values, "constraints": constraints})


def search_to_dict(search: Search) -> dict:
    """Returns the settings of a search as a dict that JSON can hold, with its `"name"`.

    Args:
        search: A `BeamSearch`, `GreedySearch` or `Sampling`.

    Raises:
        ValueError: If `search` is something else, or a constraint cannot be saved.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, search_to_dict
    >>> search_to_dict(GreedySearch())
    {'name': 'greedy'}
    """
    check_member(Search, search)
    return search.to_dict()


def search_from_dict(settings: Mapping) -> Search:
    """Returns the search that `search_to_dict` described.

    Args:
        settings: A dict with `"name"` and the arguments that differ from the defaults.

    Raises:
        ValueError: If a name or setting is unknown, or the search refuses a value.

    Example:

    >>> from keras_transformer.decoding import search_from_dict
    >>> search_from_dict({"name": "beam", "beam_size": 5}).beam_size
    5
    """
    return Search.from_dict(settings)
