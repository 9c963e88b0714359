"""Beam search with a length penalty, n-best lists and an early stop."""

import dataclasses
import math
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.checks import check_argument, check_choice, checked_number
from keras_transformer.decoding.constraints import CONSTRAINTS
from keras_transformer.decoding.search import Search, SearchResult, keep_shapes, run_search
from keras_transformer.decoding.top_k import top_k
from keras_transformer.layers.tensors import Tensor
from keras_transformer.settings.setting import BEAMS, choice, number, setting

_MINUS_INFINITY = float("-inf")
_NORMALIZATIONS = ("gnmt", "length")
# With a larger alpha the penalty of a long hypothesis is infinite in float32.
_LARGEST_ALPHA = 10


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


class BeamState(NamedTuple):
    """Alive and finished hypotheses of a search, best first; empty ones score -inf."""

    index: Any  # int32 []: tokens generated so far
    limits: Any  # int32 [batch]: the sentence's maximum length
    is_done: Any  # bool [batch]: the sentence's answer is final, and its state frozen
    parents: Any  # int32 [batch, beam]: the beam of the last step that each alive beam continues
    last_tokens: Any  # int32 [batch, beam]: next input of the step
    alive_tokens: Any  # int32 [batch, beam, max_length]
    alive_log_probabilities: Any  # float [batch, beam]
    finished_tokens: Any  # int32 [batch, n, max_length]: hypotheses that end in EOS
    finished_scores: Any  # float [batch, n]: log-probability / length penalty
    finished_log_probabilities: Any  # float [batch, n]
    finished_lengths: Any  # int32 [batch, n]: with EOS
    num_finished: Any  # int32 [batch]: hypotheses that ended among the best `beam_size`


class Candidates(NamedTuple):
    """Best extensions of the alive beams, best first."""

    log_probabilities: Any  # float [batch, candidates]
    parents: Any  # int32 [batch, candidates]: the alive beam that is extended, 0 .. beam - 1
    last_tokens: Any  # int32 [batch, candidates]
    tokens: Any  # int32 [batch, candidates, max_length]
    is_finished: Any  # bool [batch, candidates]: the last token is EOS


@dataclasses.dataclass(frozen=True)
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

    >>> step = lambda tokens, rows, state: (ops.array([[-99, -99, -99, 0.6, 0.4]] * 2), state)
    >>> search = keras_transformer.decoding.BeamSearch(beam_size=2, n_best=2)
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[3], max_length=3).tokens).tolist()
    [[[3, 0, 0], [4, 3, 0]]]
    """

    beam_size: int = setting(4, BEAMS)
    length_penalty: float = setting(0.6, number(0, _LARGEST_ALPHA))
    n_best: int = setting(1, BEAMS)
    length_normalization: str = setting("gnmt", choice("KIND", *_NORMALIZATIONS))
    constraints: tuple = setting((), CONSTRAINTS)
    patience: float | None = setting(None, number(0, 1e6))

    def __post_init__(self) -> None:
        super().__post_init__()
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
            first_rows = self.beam_size * ops.arange(ops.shape(beams.parents)[0], dtype="int32")
            rows = ops.expand_dims(first_rows, -1) + beams.parents  # [batch, beam]
            flat = ops.reshape(beams.last_tokens, (-1,)), ops.reshape(rows, (-1,))
            logits, state = inputs.call_step(*flat, state)
            candidates = self._best_candidates(logits, beams, inputs)
            return keep_shapes(self._advance(beams, candidates), beams), state

        beams = run_search(extend, self._start(inputs), inputs.state, inputs.keep_sentences)
        return self._collect(beams, inputs.pad_id)

    def _start(self, inputs):
        batch, dtype = ops.shape(inputs.limits)[0], inputs.dtype
        alive_shape, finished_shape = (batch, self.beam_size), (batch, self.n_best)

        def filled(shape):
            return ops.full((*shape, inputs.max_length), inputs.pad_id, dtype="int32")

        # Only beam 0 counts at first: the others are the same hypothesis.
        first = ops.where(ops.arange(self.beam_size) > 0, _MINUS_INFINITY, 0.0)  # [beam]
        return BeamState(
            index=ops.convert_to_tensor(0, dtype="int32"),
            limits=inputs.limits,
            is_done=inputs.limits < 1,
            parents=ops.broadcast_to(ops.arange(self.beam_size, dtype="int32"), alive_shape),
            last_tokens=ops.full(alive_shape, inputs.bos_id, dtype="int32"),
            alive_tokens=filled(alive_shape),
            alive_log_probabilities=ops.broadcast_to(ops.cast(first, dtype), alive_shape),
            finished_tokens=filled(finished_shape),
            finished_scores=ops.full(finished_shape, _MINUS_INFINITY, dtype=dtype),
            finished_log_probabilities=ops.full(finished_shape, _MINUS_INFINITY, dtype=dtype),
            finished_lengths=ops.zeros(finished_shape, dtype="int32"),
            num_finished=ops.zeros((batch,), dtype="int32"),
        )

    def _best_candidates(self, logits, beams, inputs):
        """Returns the best `2 * beam_size` extensions; logits `[batch * beam, vocabulary]`."""
        vocabulary = ops.shape(logits)[-1]
        num_candidates = 1 if self.beam_size == 1 else 2 * self.beam_size
        if logits.shape[-1] is not None:
            num_candidates = min(num_candidates, self.beam_size * vocabulary)
        normalizer = inputs.normalizer(logits, ops.max(logits, axis=-1, keepdims=True))
        terms = -ops.reshape(normalizer, (-1, self.beam_size)), beams.alive_log_probabilities
        totals, best = top_k(logits, num_candidates, terms)  # [batch, candidates]
        parents, last_tokens = best // vocabulary, best % vocabulary
        tokens = _gather(beams.alive_tokens, parents)  # [batch, candidates, max_length]
        is_next = ops.equal(ops.arange(ops.shape(tokens)[-1], dtype="int32"), beams.index)
        return Candidates(
            log_probabilities=totals,
            parents=parents,
            last_tokens=last_tokens,
            tokens=ops.where(is_next, ops.expand_dims(last_tokens, -1), tokens),
            is_finished=ops.equal(last_tokens, inputs.eos_id),
        )

    def _advance(self, beams, candidates):
        """Returns the state after a step."""
        length = beams.index + 1
        # With a tiny vocabulary, an EOS candidate may be among the alive beams, with score -inf.
        alive = ops.where(candidates.is_finished, _MINUS_INFINITY, candidates.log_probabilities)
        log_probabilities, best = top_k(alive, self.beam_size)  # [batch, beam]
        beams_after = beams._replace(
            index=length,
            parents=_gather(candidates.parents, best),
            last_tokens=_gather(candidates.last_tokens, best),
            alive_tokens=_gather(candidates.tokens, best),
            alive_log_probabilities=log_probabilities,
        )
        beams_after = self._add_finished(beams_after, candidates, length)
        best_possible = self._scores(log_probabilities[:, 0], beams.limits)
        is_final = best_possible <= beams_after.finished_scores[:, -1]
        if self.patience is not None:
            enough = max(math.ceil(self.patience * self.beam_size), self.n_best)
            is_final = ops.logical_or(is_final, beams_after.num_finished >= enough)
        is_done = ops.logical_or(is_final, length >= beams.limits)
        frozen = {
            name: _where_sentence(beams.is_done, getattr(beams, name), getattr(beams_after, name))
            for name in BeamState._fields
            if name.startswith(("alive", "finished"))
        }
        return beams_after._replace(is_done=ops.logical_or(beams.is_done, is_done), **frozen)

    def _add_finished(self, beams, candidates, length):
        is_finished, log_probabilities = candidates.is_finished, candidates.log_probabilities
        log_probabilities = ops.where(is_finished, log_probabilities, _MINUS_INFINITY)
        scores = self._scores(log_probabilities, length)
        # Earlier hypotheses come first, so that ties keep them.
        scores, best = top_k(ops.concatenate([beams.finished_scores, scores], 1), self.n_best)
        lengths = ops.broadcast_to(length, ops.shape(candidates.last_tokens))
        # Do not count candidates that extend an empty beam or break a constraint.
        is_new = log_probabilities[:, : self.beam_size] > _MINUS_INFINITY

        def merge(finished, new):
            return _gather(ops.concatenate([finished, new], axis=1), best)  # [batch, n, ...]

        return beams._replace(
            finished_tokens=merge(beams.finished_tokens, candidates.tokens),
            finished_scores=scores,
            finished_log_probabilities=merge(beams.finished_log_probabilities, log_probabilities),
            finished_lengths=merge(beams.finished_lengths, lengths),
            num_finished=beams.num_finished + ops.sum(ops.cast(is_new, "int32"), axis=1),
        )

    def _collect(self, beams, pad_id):
        """Returns the n best: finished hypotheses, then alive beams, then empty ones."""

        def both(finished, alive):
            return ops.concatenate([finished, alive], axis=1)  # [batch, n + beam, ...]

        # Alive beams are only needed where a sentence ran to its maximum length.
        limits = ops.expand_dims(ops.maximum(beams.limits, 0), -1)  # [batch, 1]
        alive = beams.alive_log_probabilities
        scores = both(beams.finished_scores, self._scores(alive, limits))
        is_empty = ops.equal(scores, _MINUS_INFINITY)
        size = self.n_best + self.beam_size
        rank = ops.arange(size, 0, -1, dtype="int32")  # distinct, the first one highest
        _, best = top_k(ops.where(is_empty, rank - size, rank), self.n_best)  # [batch, n]
        is_empty = _gather(is_empty, best)
        tokens = both(beams.finished_tokens, beams.alive_tokens)
        log_probabilities = both(beams.finished_log_probabilities, alive)
        lengths = both(beams.finished_lengths, ops.broadcast_to(limits, ops.shape(alive)))
        return SearchResult(
            tokens=ops.where(ops.expand_dims(is_empty, -1), pad_id, _gather(tokens, best)),
            scores=_gather(scores, best),
            log_probabilities=_gather(log_probabilities, best),
            lengths=ops.where(is_empty, 0, _gather(lengths, best)),
        )

    def _scores(self, log_probabilities, lengths):
        lengths = ops.cast(lengths, log_probabilities.dtype)
        penalty = length_penalty(lengths, self.length_penalty, self.length_normalization)
        return log_probabilities / penalty


def _where_sentence(condition, x, y):
    """Returns `x` where `condition`, bool `[batch]`, else `y`; both are `[batch, ...]`."""
    shape = (-1,) + (1,) * (len(x.shape) - 1)
    return ops.where(ops.reshape(condition, shape), x, y)


def _gather(x, indices):
    """Returns `x[b, indices[b, i]]`, `[batch, n, ...]`; `x` is `[batch, size, ...]`."""
    shape = ops.shape(x)
    flat = ops.reshape(x, (-1, *shape[2:]))  # [batch * size, ...]
    first = shape[1] * ops.arange(shape[0], dtype="int32")  # [batch]
    return ops.take(flat, indices + ops.expand_dims(first, -1), axis=0)
