"""Beam search with a length penalty, n-best lists and an early stop."""

import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import keras
from annotated_types import Ge, Le
from keras import ops

from keras_transformer.checks import check_argument, check_choice, checked_number
from keras_transformer.decoding.constraints import TERM, Constraints
from keras_transformer.decoding.loop import extend_until_done, keep_shapes, top_k
from keras_transformer.decoding.search import Search, SearchResult
from keras_transformer.decoding.terms import best_with_terms, requires_terms
from keras_transformer.layers.tensors import Tensor
from keras_transformer.settings.base import settings_dataclass

_MINUS_INFINITY = float("-inf")
_NORMALIZATIONS = ("gnmt", "length")
# With a larger alpha the penalty of a long hypothesis is infinite in float32.
_LARGEST_ALPHA = 10
# Tensors grow with the number of beams.
_Beams = Annotated[int, Ge(1), Le(2**12)]


def length_penalty(lengths: Tensor, alpha: float, normalization: str = "gnmt") -> Tensor:
    """Returns the divisor of a log-probability, `((5 + length) / 6) ** alpha`.

    Args:
        lengths: Numbers of generated tokens, with EOS, without BOS; any shape.
        alpha: Strength, a number from 0 to 10, 0.6 in the paper; with 0 there is no normalization.
        normalization: `"gnmt"` for the paper's formula; or `"length"` for `length ** alpha`, where
            lengths below 1 count as 1.

    Returns:
        A tensor of the shape of `lengths` in at least float32.

    Example:

    >>> float(keras_transformer.decoding.length_penalty(7, alpha=1.0))
    2.0

    Reference: Vaswani et al. (2017), section 6.1; Wu et al. (2016), equation (14).
    """
    # With a negative alpha, longer hypotheses lose score and the early stop is no longer exact.
    alpha = checked_number("length_penalty", alpha, 0, _LARGEST_ALPHA)
    check_choice("length_normalization", normalization, _NORMALIZATIONS)
    lengths = ops.convert_to_tensor(lengths)
    if "float64" not in str(lengths.dtype):
        lengths = ops.cast(lengths, "float32")
    if normalization == "gnmt":
        return ops.power((5.0 + lengths) / 6.0, alpha)
    return ops.power(ops.maximum(lengths, 1.0), alpha)


class Alive(NamedTuple):
    """Hypotheses that the next step extends, best first; those with -inf are empty."""

    tokens: Any  # int32 [batch, beam, max_length]
    log_probabilities: Any  # float [batch, beam]


class Finished(NamedTuple):
    """Hypotheses that end in EOS, best first; the score of empty ones is -inf."""

    tokens: Any  # int32 [batch, n, max_length]
    scores: Any  # float [batch, n]: log-probability / length penalty
    log_probabilities: Any  # float [batch, n]
    lengths: Any  # int32 [batch, n]: with EOS


class BeamState(NamedTuple):
    """State of a beam search."""

    index: Any  # int32 []: tokens generated so far
    limits: Any  # int32 [batch]: the sentence's maximum length
    is_done: Any  # bool [batch]: the sentence's answer is final, `alive` and `finished` are frozen
    parents: Any  # int32 [batch, beam]: the beam of the last step that each alive beam continues
    last_tokens: Any  # int32 [batch, beam]: next input of the step, with the term that it begins
    alive: Alive
    finished: Finished
    num_finished: Any  # int32 [batch]: hypotheses that ended among the best `beam_size`


class Candidates(NamedTuple):
    """Best extensions of the alive beams, best first."""

    log_probabilities: Any  # float [batch, candidates]
    parents: Any  # int32 [batch, candidates]: the alive beam that is extended, 0 .. beam - 1
    next_inputs: Any  # int32 [batch, candidates]: `last_tokens` of the next state
    tokens: Any  # int32 [batch, candidates, max_length]
    is_finished: Any  # bool [batch, candidates]: the last token is EOS


@settings_dataclass
class BeamSearch(Search, name="beam"):
    """Beam search as the paper's code does it (Vaswani et al., 2017, section 6.1; tensor2tensor).

    Each step considers the best `2 * beam_size` extensions of the alive beams; with `beam_size=1`
    only one, which is greedy search with a normalized score. Those that end in EOS go to the
    finished set with the score `log-probability / length_penalty(length)`; the best `beam_size`
    others stay alive. A sentence stops at its own maximum length, or when its best alive beam could
    not pass the `n_best`-th finished score even with the same log-probability at that length. If
    fewer than `n_best` hypotheses finished, alive beams follow them, with normalized scores. Ties
    go to the lower beam, then to the lower id, then to the hypothesis that finished first.

    Args:
        beam_size: Number of beams that stay alive.
        length_penalty: Alpha, from 0 to 10; 0 ranks by log-probability.
        n_best: Number of hypotheses returned, at most `beam_size`.
        length_normalization: `"gnmt"`, the paper's `((5 + length) / 6) ** alpha`; or `"length"`,
            `length ** alpha` as in fairseq and CTranslate2 (alpha 1: score divided by length).
        constraints: Sequence of `Constraint`, applied in this order.
        patience: None for the stop above, which never changes an answer. A number from
            1 / `beam_size` to 1e6 stops a sentence sooner: when `patience * beam_size` hypotheses,
            and at least `n_best`, have ended among the best `beam_size` extensions of their steps.
            1 is the rule of fairseq and CTranslate2.

    Reference: Vaswani et al. (2017), section 6.1; for `patience`, Kasai et al. (2022), "A Call for
    Clarity in Beam Search: How It Works and When It Stops", arXiv 2204.05424.

    Example:

    >>> step = lambda tokens, parents, state: (ops.array([[-99, -99, -99, 0.6, 0.4]] * 2), state)
    >>> search = keras_transformer.decoding.BeamSearch(beam_size=2, n_best=2)
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[3], max_length=3).tokens).tolist()
    [[[3, 0, 0], [4, 3, 0]]]
    """

    beam_size: _Beams = 4
    length_penalty: Annotated[float, Ge(0), Le(_LARGEST_ALPHA)] = 0.6
    n_best: _Beams = 1
    length_normalization: Literal["gnmt", "length"] = "gnmt"
    constraints: Constraints = ()
    patience: Annotated[float, Ge(0), Le(1e6)] | None = None
    finds_terms: ClassVar[bool] = True

    def __post_init__(self) -> None:
        size, patience = self.beam_size, self.patience
        rule = f"at most `beam_size`, which is {size}"
        check_argument(self.n_best <= size, "n_best", rule, self.n_best)
        rule = f"at least 1 / `beam_size`, which is {size}"
        check_argument(patience is None or patience * size >= 1, "patience", rule, patience)

    @property
    def width(self) -> int:
        return self.beam_size

    def _search(self, inputs):
        def extend(beams, state):
            first = self.beam_size * ops.arange(ops.shape(beams.parents)[0], dtype="int32")
            parents = ops.expand_dims(first, -1) + beams.parents  # [batch, beam]
            # [batch, beam] -> [batch * beam]
            flat = ops.reshape(beams.last_tokens, (-1,)), ops.reshape(parents, (-1,))
            logits, state = inputs.call_step(*flat, state)
            candidates = self._best_candidates(logits, beams, inputs, state)
            return keep_shapes(self._advance(beams, candidates), beams), state

        start = self._start(inputs)
        beams = extend_until_done(extend, start, inputs.state, inputs.keep_sentences)
        return self._collect(beams, inputs.pad_id)

    def _start(self, inputs):
        batch, dtype = ops.shape(inputs.limits)[0], inputs.dtype
        alive_shape, finished_shape = (batch, self.beam_size), (batch, self.n_best)

        def padding(shape):
            return ops.full((*shape, inputs.max_length), inputs.pad_id, dtype="int32")

        # Only beam 0 counts at first: the others are the same hypothesis.
        first = ops.where(ops.arange(self.beam_size) > 0, _MINUS_INFINITY, 0.0)  # [beam]
        return BeamState(
            index=ops.convert_to_tensor(0, dtype="int32"),
            limits=inputs.limits,
            is_done=inputs.limits < 1,
            parents=ops.broadcast_to(ops.arange(self.beam_size, dtype="int32"), alive_shape),
            last_tokens=ops.full(alive_shape, inputs.bos_id, dtype="int32"),
            alive=Alive(
                tokens=padding(alive_shape),
                log_probabilities=ops.broadcast_to(ops.cast(first, dtype), alive_shape),
            ),
            finished=Finished(
                tokens=padding(finished_shape),
                scores=ops.full(finished_shape, _MINUS_INFINITY, dtype=dtype),
                log_probabilities=ops.full(finished_shape, _MINUS_INFINITY, dtype=dtype),
                lengths=ops.zeros(finished_shape, dtype="int32"),
            ),
            num_finished=ops.zeros((batch,), dtype="int32"),
        )

    def _best_candidates(self, logits, beams, inputs, state):
        """Returns the best extensions of the alive beams, as many as the class says.

        `logits` are `[batch * beam, vocabulary]`; a tiny vocabulary may have fewer extensions.
        """
        alive = beams.alive
        if requires_terms(inputs.constraints):
            term_state = state["constraints"][-1]
            found = best_with_terms(logits, alive.log_probabilities, term_state, inputs.eos_id)
            totals, parents, last_tokens, begun = found
            next_inputs = last_tokens + TERM * begun
        else:
            vocabulary = ops.shape(logits)[-1]
            num_candidates = 1 if self.beam_size == 1 else 2 * self.beam_size
            if logits.shape[-1] is not None:
                num_candidates = min(num_candidates, self.beam_size * vocabulary)
            # With the ids of the largest logits, the normalizer needs no maximum of its own.
            # [batch * beam, 1] -> [batch, beam]
            normalizer = inputs.normalizer(logits, *top_k(logits, 1))
            addends = -ops.reshape(normalizer, (-1, self.beam_size)), alive.log_probabilities
            totals, best = top_k(logits, num_candidates, addends)  # [batch, candidates]
            parents, last_tokens = best // vocabulary, best % vocabulary
            next_inputs = last_tokens
        tokens = _gather(alive.tokens, parents)  # [batch, candidates, max_length]
        is_next = ops.equal(ops.arange(ops.shape(tokens)[-1], dtype="int32"), beams.index)
        return Candidates(
            log_probabilities=totals,
            parents=parents,
            next_inputs=next_inputs,
            tokens=ops.where(is_next, ops.expand_dims(last_tokens, -1), tokens),
            is_finished=ops.equal(last_tokens, inputs.eos_id),
        )

    def _advance(self, beams, candidates):
        """Returns the state after a step."""
        length = beams.index + 1
        # With a tiny vocabulary, an EOS candidate may be among the alive beams, with score -inf.
        extended = ops.where(candidates.is_finished, _MINUS_INFINITY, candidates.log_probabilities)
        log_probabilities, best = top_k(extended, self.beam_size)  # [batch, beam]
        alive = Alive(_gather(candidates.tokens, best), log_probabilities)
        finished, num_new = self._add_finished(beams.finished, candidates, length)
        num_finished = beams.num_finished + num_new
        best_possible = self._scores(log_probabilities[:, 0], beams.limits)
        is_final = best_possible <= finished.scores[:, -1]
        if self.patience is not None:
            enough = max(math.ceil(self.patience * self.beam_size), self.n_best)
            is_final = ops.logical_or(is_final, num_finished >= enough)
        is_done = ops.logical_or(is_final, length >= beams.limits)
        return beams._replace(
            index=length,
            is_done=ops.logical_or(beams.is_done, is_done),
            parents=_gather(candidates.parents, best),
            last_tokens=_gather(candidates.next_inputs, best),
            alive=_where_sentence(beams.is_done, beams.alive, alive),
            finished=_where_sentence(beams.is_done, beams.finished, finished),
            num_finished=num_finished,
        )

    def _add_finished(self, finished, candidates, length):
        """Returns the best hypotheses that end in EOS, and the number of new ones, `[batch]`."""
        new = ops.where(candidates.is_finished, candidates.log_probabilities, _MINUS_INFINITY)
        # Earlier hypotheses come first, so that ties keep them.
        scores = ops.concatenate([finished.scores, self._scores(new, length)], axis=1)
        scores, best = top_k(scores, self.n_best)
        lengths = ops.broadcast_to(length, ops.shape(candidates.parents))
        # Do not count candidates that extend an empty beam or break a constraint.
        is_new = new[:, : self.beam_size] > _MINUS_INFINITY

        def merge(old, new):
            return _gather(ops.concatenate([old, new], axis=1), best)  # [batch, n, ...]

        finished = Finished(
            tokens=merge(finished.tokens, candidates.tokens),
            scores=scores,
            log_probabilities=merge(finished.log_probabilities, new),
            lengths=merge(finished.lengths, lengths),
        )
        return finished, ops.sum(ops.cast(is_new, "int32"), axis=1)

    def _collect(self, beams, pad_id):
        """Returns the n best: finished hypotheses, then alive beams, then empty ones."""
        alive, finished = beams.alive, beams.finished

        def both(finished, alive):
            return ops.concatenate([finished, alive], axis=1)  # [batch, n + beam, ...]

        # Alive beams are only needed where a sentence ran to its maximum length.
        limits = ops.expand_dims(ops.maximum(beams.limits, 0), -1)  # [batch, 1]
        scores = both(finished.scores, self._scores(alive.log_probabilities, limits))
        is_answer = ops.cast(ops.not_equal(scores, _MINUS_INFINITY), "int32")
        is_answer, best = top_k(is_answer, self.n_best)  # [batch, n]; the first ones win ties
        tokens = both(finished.tokens, alive.tokens)
        log_probabilities = both(finished.log_probabilities, alive.log_probabilities)
        alive_lengths = ops.broadcast_to(limits, ops.shape(alive.log_probabilities))
        lengths = both(finished.lengths, alive_lengths)
        return SearchResult(
            tokens=ops.where(ops.expand_dims(is_answer > 0, -1), _gather(tokens, best), pad_id),
            scores=_gather(scores, best),
            log_probabilities=_gather(log_probabilities, best),
            lengths=is_answer * _gather(lengths, best),
        )

    def _scores(self, log_probabilities, lengths):
        lengths = ops.cast(lengths, log_probabilities.dtype)
        penalty = length_penalty(lengths, self.length_penalty, self.length_normalization)
        return log_probabilities / penalty


def _where_sentence(condition, x, y):
    """Returns the tensors `[batch, ...]` of `x` where `condition`, bool `[batch]`, else of `y`."""

    def where(x, y):
        shape = (-1,) + (1,) * (len(x.shape) - 1)  # [batch] -> [batch, 1, ...]
        return ops.where(ops.reshape(condition, shape), x, y)

    return keras.tree.map_structure(where, x, y)


def _gather(x, indices):
    """Returns `x[b, indices[b, i]]`, `[batch, n, ...]`; `x` is `[batch, size, ...]`."""
    batch, size, *others = ops.shape(x)
    first = size * ops.arange(batch, dtype="int32")  # [batch]
    # [batch, size, ...] -> [batch * size, ...]
    flat = ops.reshape(x, (-1, *others))
    return ops.take(flat, indices + ops.expand_dims(first, -1), axis=0)
