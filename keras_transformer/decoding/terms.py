"""Terms that the answers of a beam search must contain, and how they share its beams."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.constraints import Generated, token_sets
from keras_transformer.decoding.loop import top_k
from keras_transformer.layers.tensors import Tensor, check_shape

_MINUS_INFINITY = float("-inf")


class TermState(NamedTuple):
    """State of `RequiredTerms`, for each hypothesis."""

    ids: Any  # int32 [hypotheses, terms, length]: the terms of its sentence
    start: Any  # int32 [hypotheses]: number of tokens before the first term
    missing: Any  # int32 [hypotheses, terms]: how many times each term has yet to begin
    is_inside: Any  # bool [hypotheses]: a term goes on
    rest: Any  # int32 [hypotheses, length]: its ids from the next one on
    # bool [hypotheses, terms, length]: whether the last k tokens are the first k of each term
    spelled: Any
    num_ids: Any  # int32 [hypotheses]: ids of terms so far, with the one that comes next
    scores: Any  # float [hypotheses, terms]: log-probability of beginning each term now


class RequiredTerms:
    """Makes every hypothesis of a sentence contain that sentence's terms, in any order.

    Terms are data of a call, so pass this constraint to the call of a `BeamSearch`, as the last
    one; other searches refuse it. The beams are shared equally among hypotheses with 0, 1, 2, ...
    ids of terms, so that the model chooses where a term stands. A hypothesis that begins a term
    completes it, even if other constraints rule its ids out. EOS comes after all terms; where the
    maximum length of a sentence leaves no more room than they need, only they come.

    Args:
        ids: int32 `[batch, terms, length]`, padded at the end, without EOS. Terms do not overlap;
            a term that is there twice must occur twice. All terms of a sentence must fit its
            maximum length, EOS included.
        start: int32 `[batch]`, number of tokens before the first term, such as those of a
            `ForcedPrefix`; None for 0.
        pad_id: Id of the padding.
        joins: bool `[2, vocabulary]`: whether each token begins with a letter of a word, and
            whether it ends with one. After a term that ends with a letter, no token follows that
            begins with one. None lets any token follow.

    Example:

    >>> from keras_transformer.decoding import BeamSearch, RequiredTerms
    >>> step = lambda tokens, parents, state: (ops.array([[0.0, 0, 0, 9, 0, 0]] * 2), state)
    >>> terms = RequiredTerms(ops.array([[[5, 4]]]))
    >>> result = BeamSearch(beam_size=2)(step, (), [4], max_length=4, constraints=[terms])
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[5, 4, 3, 0]]]

    Reference: Post and Vilar (2018), https://arxiv.org/abs/1804.06609. Differs from it: a term that
    has begun goes on, and a hypothesis may contain its first tokens without having begun it.
    """

    def __init__(
        self, ids: Tensor, start: Tensor | None = None, pad_id: int = 0, joins: Any = None
    ) -> None:
        self.ids = ops.cast(ops.convert_to_tensor(ids), "int32")
        self.pad_id, self.joins = pad_id, joins
        check_shape("ids", self.ids, "[batch, terms, length]")
        batch = ops.shape(self.ids)[0]
        self.first = ops.zeros((batch,), "int32") if start is None else ops.cast(start, "int32")

    def start(self, max_lengths: Tensor, width: int) -> TermState:
        del max_lengths
        ids = ops.pad(self.ids, [[0, 0], [0, 0], [0, 1]], constant_values=self.pad_id)
        # Terms with the same ids are one term, which must occur several times.
        same = ops.all(ops.equal(ops.expand_dims(ids, 1), ops.expand_dims(ids, 2)), axis=-1)
        same = ops.cast(same, "int32")  # [batch, terms, terms]
        is_first = ops.equal(ops.sum(ops.tril(same, -1), axis=-1), 0)
        is_term = ops.not_equal(ids[:, :, 0], self.pad_id)
        missing = ops.where(ops.logical_and(is_first, is_term), ops.sum(same, axis=-1), 0)
        ids, missing, start = (ops.repeat(x, width, axis=0) for x in (ids, missing, self.first))
        return TermState(
            ids=ids,
            start=start,
            missing=missing,
            is_inside=ops.zeros_like(start, dtype="bool"),
            rest=ops.full_like(ids[:, 0], self.pad_id),
            spelled=self._unspelled(ids),
            num_ids=ops.zeros_like(start),
            scores=ops.zeros_like(missing, dtype="float32"),
        )

    def __call__(
        self, state: TermState, log_probabilities: Tensor, generated: Generated
    ) -> tuple[TermState, Tensor]:
        ids, length, vocabulary = state.ids, generated.length, log_probabilities.shape[-1]
        was_inside = ops.logical_or(state.is_inside, generated.begun > 0)
        state = self._advance(state, generated)
        is_inside = ops.expand_dims(state.is_inside, -1)
        is_free = ops.logical_and(ops.expand_dims(length >= state.start, -1), ~is_inside)
        is_missing = ops.logical_and(state.missing > 0, is_free)  # [hypotheses, terms]
        # A term begins with its own candidate. The tokens that would complete it without that are
        # ruled out, so that no two hypotheses are the same.
        is_id = ops.not_equal(ids, self.pad_id)
        is_last = ops.logical_and(is_id, ops.roll(~is_id, -1, axis=-1))
        would_complete = ops.any(ops.logical_and(is_last, state.spelled), axis=-1)
        last_ids = ops.sum(ops.where(is_last, ids, 0), axis=-1)  # [hypotheses, terms]
        is_out = token_sets(last_ids, ops.logical_and(is_missing, would_complete), vocabulary)
        num_missing = ops.sum(state.missing * ops.sum(ops.cast(is_id, "int32"), axis=-1), axis=-1)
        # Another token must leave room for EOS.
        is_full = length + 2 + num_missing > generated.max_lengths
        tokens = ops.arange(vocabulary, dtype="int32")
        is_eos = ops.equal(tokens, generated.eos_id)
        is_out = ops.logical_or(is_out, ops.logical_or(is_eos, ops.expand_dims(is_full, -1)))
        is_out = ops.logical_and(is_out, ops.any(is_missing, axis=-1, keepdims=True))
        if self.joins is not None:
            begins, ends = (ops.convert_to_tensor(letters) for letters in self.joins)
            is_whole = ops.logical_and(was_inside, ops.take(ends, generated.last_tokens))
            is_out = ops.logical_or(is_out, ops.logical_and(ops.expand_dims(is_whole, -1), begins))
        log_probabilities = ops.where(is_out, _MINUS_INFINITY, log_probabilities)
        is_next = ops.equal(tokens, state.rest[:, :1])
        forced = ops.where(is_next, generated.log_probabilities, _MINUS_INFINITY)
        scores = ops.take_along_axis(generated.log_probabilities, ids[:, :, 0], axis=1)
        scores = ops.cast(ops.where(is_missing, scores, _MINUS_INFINITY), "float32")
        return state._replace(scores=scores), ops.where(is_inside, forced, log_probabilities)

    def _advance(self, state, generated):
        """Returns the state after the last tokens."""
        terms = 1 + ops.arange(ops.shape(state.missing)[1], dtype="int32")
        begins = ops.cast(ops.equal(terms, ops.expand_dims(generated.begun, -1)), "int32")
        begun = ops.sum(ops.expand_dims(begins, -1) * state.ids, axis=1)  # [hypotheses, length]
        is_beginning = ops.expand_dims(generated.begun > 0, -1)
        is_in_term = ops.logical_or(is_beginning, ops.expand_dims(state.is_inside, -1))
        rest = ops.where(is_beginning, begun, state.rest)[:, 1:]
        is_next = ops.equal(state.ids, ops.expand_dims(generated.last_tokens, (1, 2)))
        spelled = ops.logical_and(state.spelled, is_next)[:, :, :-1]
        unspelled = self._unspelled(state.ids)
        spelled = ops.concatenate([unspelled[:, :, :1], spelled], axis=-1)
        is_inside = ops.not_equal(rest[:, 0], self.pad_id)
        num_new = ops.sum(begins, axis=1) + ops.cast(is_inside, "int32")
        return state._replace(
            missing=state.missing - begins,
            is_inside=is_inside,
            rest=ops.pad(rest, [[0, 0], [0, 1]], constant_values=self.pad_id),
            # Terms do not overlap: the tokens of one begin no other.
            spelled=ops.where(ops.expand_dims(is_in_term, -1), unspelled, spelled),
            num_ids=state.num_ids + num_new,
        )

    def _unspelled(self, ids):
        """Returns `spelled` where no term has begun: the first 0 tokens of each term are there."""
        is_none = ops.equal(ops.arange(ops.shape(ids)[2], dtype="int32"), 0)
        return ops.broadcast_to(is_none, ops.shape(ids))


def requires_terms(constraints: Sequence[Any]) -> bool:
    """Returns whether the last constraint is `RequiredTerms`."""
    return isinstance(constraints[-1] if constraints else None, RequiredTerms)


def best_with_terms(
    log_probabilities: Tensor, alive: Tensor, state: TermState, eos_id: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the best extensions; hypotheses with 0, 1, 2, ... ids of terms share the beams.

    The best extension with each number of ids comes first, then the second best with each number,
    and so on. Only the first `beam` of those without EOS are left to stay alive.

    Args:
        log_probabilities: float `[batch * beam, vocabulary]`.
        alive: float `[batch, beam]`, the log-probabilities of the beams.
        state: The state of `RequiredTerms`.
        eos_id: Id of EOS.

    Returns:
        `(log_probabilities, parents, tokens, begun)`, each `[batch, 2 * beam]`; `begun` is the
        number of the term that the token begins, from 1, or 0.
    """
    width = alive.shape[1]
    # At most `width` extensions of one beam can be needed, and one more that is EOS.
    values, tokens = top_k(log_probabilities, min(width + 1, log_probabilities.shape[-1]))
    # All terms that a beam may begin lead to the same number of ids: `2 * width` are enough.
    terms = ops.argsort(ops.negative(state.scores), axis=1)[:, : 2 * width]
    scores = ops.take_along_axis(state.scores, terms, axis=1)
    first_ids = ops.take_along_axis(state.ids[:, :, 0], terms, axis=1)
    size = width * (ops.shape(tokens)[1] + ops.shape(terms)[1])

    def of_sentences(tokens, terms):
        # [batch * beam, tokens], [batch * beam, terms] -> [batch, beam * (tokens + terms)]
        return ops.reshape(ops.concatenate([tokens, terms], axis=1), (-1, size))

    def at(values, indices):
        return ops.take_along_axis(values, indices, axis=1)

    begun = of_sentences(ops.zeros_like(tokens), 1 + ops.cast(terms, "int32"))
    tokens = of_sentences(tokens, first_ids)
    values = of_sentences(values, ops.cast(scores, values.dtype))
    parents = ops.arange(size, dtype="int32") // (size // width)  # [candidates]
    totals = values + ops.take(alive, parents, axis=1)
    order = ops.argsort(ops.negative(totals), axis=1)  # [batch, candidates], best first
    is_begun = ops.cast(begun > 0, "int32")
    num_ids = ops.take(ops.reshape(state.num_ids, (-1, width)), parents, axis=1) + is_begun
    is_empty = ops.equal(at(totals, order), _MINUS_INFINITY)
    largest = ops.shape(state.ids)[1] * ops.shape(state.ids)[2]
    ranks = _ranks_among_equals(at(num_ids, order), largest)
    # Sorted by rank, then by total. Extensions of empty beams come last.
    keys = size * ops.where(is_empty, size, ranks) + ops.arange(size, dtype="int32")
    _, best = top_k(ops.negative(keys), 2 * width)
    best = at(order, best)  # [batch, 2 * beam]
    goes_on = ops.not_equal(at(tokens, best), eos_id)
    is_late = ops.cumsum(ops.cast(goes_on, "int32"), axis=1) > width
    totals = ops.where(ops.logical_and(goes_on, is_late), _MINUS_INFINITY, at(totals, best))
    return totals, ops.take(parents, best), at(tokens, best), at(begun, best)


def _ranks_among_equals(numbers, largest):
    """Returns the rank of each entry among those with the same number, from 1, `[batch, n]`."""
    has_number = ops.equal(ops.expand_dims(numbers, 2), ops.arange(largest + 1, dtype="int32"))
    counts = ops.cumsum(ops.cast(has_number, "int32"), axis=1)  # [batch, n, numbers]
    return ops.sum(ops.where(has_number, counts, 0), axis=2)
