"""Constraints, which are rules for the next token that every search can follow."""

from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from annotated_types import Ge, Le, Len, Predicate
from keras import ops

from keras_transformer.layers.caches import hypotheses_of, take_entries
from keras_transformer.layers.tensors import Tensor, check_shape
from keras_transformer.settings.base import (
    Allowed,
    CountOrZero,
    Items,
    Settings,
    Size,
    settings_dataclass,
)


class Generated(NamedTuple):
    """Tokens that the hypotheses of a search consist of so far, as a constraint sees them.

    Attributes:
        tokens: int32 `[hypotheses, max_length]`, without BOS, padding from `length` on.
        last_tokens: int32 `[hypotheses]`; BOS in the first call.
        length: int32 scalar, the number of tokens of every hypothesis; 0 in the first call.
        max_lengths: int32 `[hypotheses]`, maximum number of tokens in the sentence's answers, EOS
            included.
        log_probabilities: float `[hypotheses, vocabulary]`, the model's, before any constraint.
        eos_id: Id that ends a hypothesis.
        begun: int32 `[hypotheses]`, number of the term of `RequiredTerms` that the last token
            begins, from 1; 0 if it begins none.

    Example:

    >>> generated = keras_transformer.decoding.Generated(
    ...     ops.array([[7, 5, 0]]), ops.array([5]), 2, ops.array([3]), ops.zeros((1, 8)), eos_id=3)
    >>> ops.convert_to_numpy(generated.max_lengths - generated.length).tolist()
    [1]
    """

    tokens: Any
    last_tokens: Any
    length: Any
    max_lengths: Any
    log_probabilities: Any
    eos_id: int
    begun: Any = 0


class Constraint(Protocol):
    """A rule for hypotheses: `constraint(state, log_probabilities, generated)` at each step.

    The call returns the new state and the log-probabilities that the search uses: minus infinity
    for a token that must not come next. The search does not renormalize them. They must not exceed
    0, because the early stop of a beam search relies on it. Use `keras.ops` for everything that
    depends on values, because a graph is traced once.

    Constraints are applied in order, first those of the search, then those of the call. If no token
    is left for any hypothesis of a sentence, those in the `SearchResult` are empty.

    `start(max_lengths, width)` gives the state before the first step: `max_lengths` is int32
    `[batch]`, and every sentence has `width` hypotheses. The state is a nest of tensors with the
    leading axis `batch * width`, or `()`. The search reorders it with the beams and drops finished
    sentences, so the state must hold everything that belongs to a sentence. Dtypes and shapes,
    except for the number of hypotheses, must not change.

    Args:
        state: State that `start` or the last call returned, reordered.
        log_probabilities: float `[hypotheses, vocabulary]`, from the constraint before; the size
            of the vocabulary is static.
        generated: A `Generated`.

    Example:

    >>> class Countdown:  # Each token has a lower id than the one before.
    ...     def start(self, max_lengths, width):
    ...         return ()
    ...     def __call__(self, state, log_probabilities, generated):
    ...         last = ops.where(generated.length > 0, generated.last_tokens, 99)
    ...         is_lower = ops.arange(log_probabilities.shape[-1]) < ops.expand_dims(last, -1)
    ...         return state, ops.where(is_lower, log_probabilities, float("-inf"))
    >>> search = keras_transformer.decoding.GreedySearch(constraints=[Countdown()])
    """

    def start(self, max_lengths: Any, width: int) -> Any: ...

    def __call__(
        self, state: Any, log_probabilities: Any, generated: Generated
    ) -> tuple[Any, Any]: ...


def is_constraint(value: Any) -> bool:
    """Returns whether a value is a `Constraint`."""
    # A class is callable and has a `start` too.
    return callable(value) and hasattr(value, "start") and not isinstance(value, type)


CONSTRAINTS = Allowed("a sequence of `Constraint` objects")
Constraints = Annotated[Items[Annotated[Any, Predicate(is_constraint)]], CONSTRAINTS]
# Each token before the last of an n-gram adds operations to the graph.
_NgramSize = Annotated[int, Ge(1), Le(100)]
_Ids = Annotated[Items[CountOrZero], Len(1), Allowed("ids of at least 0, one or more")]
# A search gives a last token that begins a term to its step as `token + TERM * number`.
TERM = 2**20
# Within these limits, sums of penalized log-probabilities stay finite in float32.
_Penalty = Annotated[float, Ge(1e-20), Le(1e20)]


def check_static_vocabulary(logits):
    """Raises a `ValueError` if the size of the vocabulary is unknown while a graph is traced."""
    if logits.shape[-1] is None:
        raise ValueError(
            "With constraints or sampling, the vocabulary dimension of a step's logits must be "
            f"static. Received: logits.shape={tuple(logits.shape)}"
        )


def constrain(inputs, constraints, width):
    """Returns `SearchInputs` whose step follows constraints, with `width` hypotheses a sentence."""
    max_length, max_lengths = inputs.max_length, ops.repeat(inputs.limits, width)
    start = {
        "model": inputs.state,
        "constraints": tuple(c.start(inputs.limits, width) for c in constraints),
        "max_lengths": max_lengths,
        "tokens": ops.full((ops.shape(max_lengths)[0], max_length), inputs.pad_id, dtype="int32"),
        "length": ops.convert_to_tensor(0, dtype="int32"),
    }

    def step(last_tokens, parents, state):
        begun, last_tokens = last_tokens // TERM, last_tokens % TERM
        logits, model_state = inputs.call_step(last_tokens, parents, state["model"])
        check_static_vocabulary(logits)
        largest = ops.max(logits, axis=-1, keepdims=True)
        log_probabilities = logits - inputs.normalizer(logits, largest)
        tokens, states, length = state["tokens"], state["constraints"], state["length"]
        if parents is not None:
            tokens, states = take_entries((tokens, states), parents)
        # In the first call the last tokens are BOS, which is dropped: no index is equal to -1.
        is_last = ops.equal(ops.arange(max_length, dtype="int32"), length - 1)  # [max_length]
        tokens = ops.where(is_last, ops.expand_dims(last_tokens, -1), tokens)
        generated = Generated(
            tokens,
            last_tokens,
            length,
            state["max_lengths"],
            log_probabilities,
            inputs.eos_id,
            begun,
        )
        new_states = []
        for constraint, old_state in zip(constraints, states, strict=True):
            new_state, log_probabilities = constraint(old_state, log_probabilities, generated)
            new_states.append(new_state)
        new = {"model": model_state, "constraints": tuple(new_states), "tokens": tokens}
        return log_probabilities, {**state, **new, "length": length + 1}

    def keep_sentences(state, sentences):
        kept = {name: state[name] for name in ("constraints", "max_lengths", "tokens")}
        kept = take_entries(kept, hypotheses_of(sentences, width))
        return {**state, **kept, "model": inputs.keep_sentences(state["model"], sentences)}

    return inputs._replace(
        step=step,
        state=start,
        keep_sentences=None if inputs.keep_sentences is None else keep_sentences,
        constraints=constraints,
        normalizer=lambda log_probabilities, largest, largest_ids=None: ops.zeros_like(largest),
    )


class ForcedPrefix:
    """Makes every hypothesis of a sentence begin with that sentence's prefix.

    Prefixes are data of a call, so pass this constraint to the call of a search, not to its
    constructor. It overrides the constraints before it: its tokens come even if they were ruled
    out, with the model's log-probability. It is cut at the maximum length of the sentence.

    Args:
        ids: int32 `[batch, length]`, padded at the end; padding alone is an empty prefix.
        pad_id: Id of the padding.
        num_given: Number of first tokens whose log-probability counts as 0, because they are
            part of the question, such as the language of the answer.

    Example:

    >>> from keras_transformer.decoding import ForcedPrefix, GreedySearch
    >>> step = lambda tokens, parents, state: (ops.array([[0.0, 0, 0, 1, 0, 0]]), state)
    >>> prefix = ForcedPrefix(ops.array([[5, 4]]))
    >>> result = GreedySearch()(step, (), [4], max_length=4, constraints=[prefix])
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[5, 4, 3, 0]]]
    """

    def __init__(self, ids: Tensor, pad_id: int = 0, num_given: int = 0) -> None:
        self.ids = ops.cast(ops.convert_to_tensor(ids), "int32")
        self.pad_id, self.num_given = pad_id, num_given
        check_shape("ids", self.ids, "[batch, length]")

    def start(self, max_lengths: Tensor, width: int) -> Tensor:
        end = ops.full((ops.shape(max_lengths)[0], 1), self.pad_id, dtype="int32")
        return ops.repeat(ops.concatenate([self.ids, end], axis=1), width, axis=0)

    def __call__(
        self, state: Tensor, log_probabilities: Tensor, generated: Generated
    ) -> tuple[Tensor, Tensor]:
        index = ops.minimum(generated.length, ops.shape(state)[1] - 1)
        wanted = ops.expand_dims(ops.take(state, index, axis=1), -1)  # [hypotheses, 1]
        is_wanted = ops.equal(ops.arange(log_probabilities.shape[-1], dtype="int32"), wanted)
        values = generated.log_probabilities
        if self.num_given:
            values = ops.where(generated.length < self.num_given, ops.zeros_like(values), values)
        forced = ops.where(is_wanted, values, float("-inf"))
        has_prefix = ops.not_equal(wanted, self.pad_id)
        return state, ops.where(has_prefix, forced, log_probabilities)


class SavedConstraint(Settings, family="constraint"):
    """Base class of constraints without a state, which consist of settings saved with a search.

    Most of them implement only `_ruled_out(generated, vocabulary)`, which returns a mask that
    broadcasts to `[hypotheses, vocabulary]`, True for tokens that must not come next.
    """

    def start(self, max_lengths: Tensor, width: int) -> tuple:
        return ()

    def _ruled_out(self, generated, vocabulary):
        raise NotImplementedError

    def __call__(
        self, state: tuple, log_probabilities: Tensor, generated: Generated
    ) -> tuple[tuple, Tensor]:
        is_out = self._ruled_out(generated, log_probabilities.shape[-1])
        return state, ops.where(is_out, float("-inf"), log_probabilities)


@settings_dataclass
class MinimumLength(SavedConstraint, name="minimum_length"):
    """Rules out EOS until it would be the `length`-th token.

    A sentence with a smaller maximum length may end at that length.

    Args:
        length: Minimum number of tokens of a hypothesis, EOS counted, as in `max_lengths`.

    Example:

    >>> from keras_transformer.decoding import BeamSearch, MinimumLength
    >>> search = BeamSearch(constraints=[MinimumLength(3)])
    """

    length: Size

    def _ruled_out(self, generated, vocabulary):
        fewest = ops.minimum(generated.max_lengths, self.length)  # [hypotheses]
        is_early = ops.expand_dims(generated.length + 1 < fewest, -1)  # [hypotheses, 1]
        is_eos = ops.equal(ops.arange(vocabulary), generated.eos_id)
        return ops.logical_and(is_early, is_eos)  # [hypotheses, vocabulary]


@settings_dataclass
class NoRepeatNgrams(SavedConstraint, name="no_repeat_ngrams"):
    """Rules out each token that would complete an n-gram that the hypothesis already contains.

    Args:
        size: The n, from 1 to 100. Tokens are subwords, so a small n also forbids repetitions that
            a language needs; 3 or 4 is usual.

    Example:

    >>> from keras_transformer.decoding import BeamSearch, NoRepeatNgrams
    >>> search = BeamSearch(constraints=[NoRepeatNgrams(3)])

    Reference: Paulus et al. (2018), section 2.5, https://arxiv.org/abs/1705.04304.
    """

    size: _NgramSize

    def _ruled_out(self, generated, vocabulary):
        tokens, length = generated.tokens, generated.length
        num_hypotheses, max_length = ops.shape(tokens)
        num_before = self.size - 1
        # `padded[p]` is token p - (n - 1), so token p follows `padded[p]` .. `padded[p + n - 2]`.
        # Ids of -1, which match no token, stand before the first token.
        padding = ops.full((num_hypotheses, num_before), -1, dtype="int32")
        padded = ops.concatenate([padding, tokens], axis=1)  # [hypotheses, max_length + n - 1]
        indices = ops.arange(max_length, dtype="int32")
        is_repeated = ops.broadcast_to(indices < length, (num_hypotheses, max_length))
        for offset in range(num_before):
            before = padded[:, offset : offset + max_length]  # [hypotheses, max_length]
            before_next = ops.expand_dims(ops.take(padded, length + offset, axis=1), -1)
            is_repeated = ops.logical_and(is_repeated, ops.equal(before, before_next))
        return token_sets(tokens, is_repeated, vocabulary)


@settings_dataclass
class RepetitionPenalty(SavedConstraint, name="repetition_penalty"):
    """Multiplies the log-probability of each token that the hypothesis already contains.

    As in the beam search of Hugging Face transformers, the penalty applies to log-probabilities,
    which are never positive. CTRL divides positive logits and multiplies negative ones, and
    CTranslate2 penalizes raw logits: their results differ. Hypotheses are ranked by their
    log-probabilities after the penalty.

    Args:
        penalty: From 1e-20 to 1e20; 1 changes nothing, 1.2 is usual.

    Example:

    >>> from keras_transformer.decoding import BeamSearch, RepetitionPenalty
    >>> search = BeamSearch(constraints=[RepetitionPenalty(1.2)])

    Reference: Keskar et al. (2019), section 4.1, https://arxiv.org/abs/1909.05858.
    """

    penalty: _Penalty

    def __call__(
        self, state: tuple, log_probabilities: Tensor, generated: Generated
    ) -> tuple[tuple, Tensor]:
        tokens = generated.tokens
        is_generated = ops.arange(ops.shape(tokens)[1], dtype="int32") < generated.length
        is_generated = ops.broadcast_to(is_generated, ops.shape(tokens))
        occurs = token_sets(tokens, is_generated, log_probabilities.shape[-1])
        return state, ops.where(occurs, log_probabilities * self.penalty, log_probabilities)


@settings_dataclass
class SuppressTokens(SavedConstraint, name="suppress_tokens"):
    """Rules out tokens.

    Args:
        ids: Ids, in `[0, vocabulary)`; `[1]` is the unknown token.

    Example:

    >>> from keras_transformer.decoding import BeamSearch, SuppressTokens
    >>> search = BeamSearch(constraints=[SuppressTokens([1])])
    """

    ids: _Ids

    def _ruled_out(self, generated, vocabulary):
        if max(self.ids) >= vocabulary:
            rule = f"SuppressTokens needs ids below the vocabulary size, {vocabulary}"
            raise ValueError(f"{rule}. Received: ids={self.ids!r}")
        return np.isin(np.arange(vocabulary), self.ids)  # [vocabulary]


def token_sets(tokens, is_in, vocabulary):
    """Returns the tokens of each hypothesis where `is_in`, as bool `[hypotheses, vocabulary]`."""
    number, length = ops.shape(tokens)
    # The other tokens go to one more column, which is cut off.
    columns = ops.where(is_in, tokens, vocabulary)  # [hypotheses, length]
    first = (vocabulary + 1) * ops.arange(number, dtype="int32")
    # [hypotheses, length] -> [hypotheses * length, 1]
    indices = ops.reshape(columns + ops.expand_dims(first, -1), (-1, 1))
    zeros = ops.zeros((number * (vocabulary + 1),), dtype="int32")
    marks = ops.scatter_update(zeros, indices, ops.ones((number * length,), dtype="int32"))
    # [hypotheses * (vocabulary + 1)] -> [hypotheses, vocabulary + 1]
    return ops.reshape(marks, (number, vocabulary + 1))[:, :vocabulary] > 0
