"""Constraints that are saved with a search, one dataclass each, and their base."""

import dataclasses

import numpy as np
from keras import ops

from keras_transformer.decoding.constraints.constraint import Generated
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.settings.setting import (
    COUNT_OR_ZERO,
    SIZE,
    Rule,
    Settings,
    number,
    setting,
)

# Each token before the last of an n-gram adds operations to the graph.
_NGRAM = Rule(int, "a whole number from 1 to 100", lambda value: 1 <= value <= 100)
_IDS = Rule(
    tuple, "ids of at least 0, one or more", lambda ids: ids and all(map(COUNT_OR_ZERO.allows, ids))
)


class SavedConstraint(Settings, family="constraint"):
    """Base of constraints that have only settings, and no state.

    Most of them implement only `_ruled_out(generated, vocabulary)`, which returns a mask that
    broadcasts to `[rows, vocabulary]`, True for tokens that must not come next.
    """

    def start(self, max_lengths: Tensor, width: int) -> tuple:
        return ()

    def _ruled_out(self, generated: Generated, vocabulary: int) -> Tensor:
        raise NotImplementedError

    def __call__(
        self, state: tuple, log_probabilities: Tensor, generated: Generated
    ) -> tuple[tuple, Tensor]:
        is_out = self._ruled_out(generated, log_probabilities.shape[-1])
        return state, ops.where(is_out, float("-inf"), log_probabilities)


@dataclasses.dataclass(frozen=True)
class MinimumLength(SavedConstraint, name="minimum_length"):
    """Rules out EOS until it would be the `length`-th token.

    A sentence with a smaller maximum length may end at that length.

    Args:
        length: Minimum number of tokens of a hypothesis, EOS counted, as in `max_lengths`.

    Raises:
        ValueError: If `length` is not a positive integer.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, MinimumLength
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 2, 1]]), state)  # EOS first
    >>> search = GreedySearch(constraints=[MinimumLength(3)])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[9], max_length=9).tokens)[0, 0].tolist()
    [4, 4, 3, 0, 0, 0, 0, 0, 0]
    """

    length: int = setting(dataclasses.MISSING, SIZE)

    def _ruled_out(self, generated, vocabulary):
        fewest = ops.minimum(generated.max_lengths, self.length)  # [rows]
        is_early = ops.expand_dims(generated.length + 1 < fewest, -1)  # [rows, 1]
        is_eos = ops.equal(ops.arange(vocabulary), generated.eos_id)
        return ops.logical_and(is_early, is_eos)  # [rows, vocabulary]


@dataclasses.dataclass(frozen=True)
class NoRepeatNgrams(SavedConstraint, name="no_repeat_ngrams"):
    """Rules out each token that would complete an n-gram that the hypothesis already contains.

    Tokens are subwords, so a small `size` also forbids repetitions that a language needs; 3 or 4
    is usual.

    Args:
        size: The n, from 1 to 100; with 1 no token comes twice.

    Raises:
        ValueError: If `size` is not such an integer.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, NoRepeatNgrams
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 1, 3, 2]]), state)
    >>> search = GreedySearch(constraints=[NoRepeatNgrams(2)])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[6], max_length=6).tokens).tolist()
    [[[4, 4, 5, 4, 3, 0]]]

    Reference: Paulus et al. (2018), section 2.5, https://arxiv.org/abs/1705.04304.
    """

    size: int = setting(dataclasses.MISSING, _NGRAM)

    def _ruled_out(self, generated, vocabulary):
        tokens, length = generated.tokens, generated.length
        rows, max_length = ops.shape(tokens)
        num_before = self.size - 1
        # Place p of `padded` holds token p - (n - 1), so token p follows places p .. p + n - 2.
        # Ids of -1, which match no token, fill the places before the first token.
        nothing = ops.full((rows, num_before), -1, dtype="int32")
        padded = ops.concatenate([nothing, tokens], axis=1)  # [rows, max_length + n - 1]
        places = ops.arange(max_length, dtype="int32")
        is_repeated = ops.broadcast_to(places < length, (rows, max_length))
        for offset in range(num_before):
            before = padded[:, offset : offset + max_length]  # [rows, max_length]
            before_next = ops.expand_dims(ops.take(padded, length + offset, axis=1), -1)
            is_repeated = ops.logical_and(is_repeated, ops.equal(before, before_next))
        return _token_sets(tokens, is_repeated, vocabulary)


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(SavedConstraint, name="repetition_penalty"):
    """Multiplies the log-probability of each token that the hypothesis already contains.

    The penalty applies to log-probabilities, which are never positive, as in the beam search of
    Hugging Face transformers. CTRL divides positive logits and multiplies negative ones, and
    CTranslate2 penalizes raw logits: their results differ. Hypotheses are ranked by their
    log-probabilities after the penalty; `Translator.score` returns the model's own.

    Args:
        penalty: From 1e-20 to 1e20; 1 changes nothing, 1.2 is usual.

    Raises:
        ValueError: If `penalty` is not such a number.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, RepetitionPenalty
    >>> table = ops.log(ops.array([[0.01, 0.01, 0.01, 0.01, 0.51, 0.45]]))
    >>> step = lambda tokens, rows, state: (table, state)
    >>> search = GreedySearch(constraints=[RepetitionPenalty(1.2)])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[3], max_length=3).tokens).tolist()
    [[[4, 5, 4]]]

    Reference: Keskar et al. (2019), section 4.1, https://arxiv.org/abs/1909.05858.
    """

    # Within these limits, sums of penalized log-probabilities stay finite in float32.
    penalty: float = setting(dataclasses.MISSING, number(1e-20, 1e20))

    def __call__(
        self, state: tuple, log_probabilities: Tensor, generated: Generated
    ) -> tuple[tuple, Tensor]:
        tokens = generated.tokens
        is_there = ops.arange(ops.shape(tokens)[1], dtype="int32") < generated.length
        is_there = ops.broadcast_to(is_there, ops.shape(tokens))
        has_come = _token_sets(tokens, is_there, log_probabilities.shape[-1])
        return state, ops.where(has_come, log_probabilities * self.penalty, log_probabilities)


@dataclasses.dataclass(frozen=True)
class SuppressTokens(SavedConstraint, name="suppress_tokens"):
    """Rules out tokens; `SuppressTokens([1])` rules out the unknown token.

    Args:
        ids: Ids, in `[0, vocabulary)`.

    Raises:
        ValueError: If `ids` is empty or holds something else; or if an id is not in the vocabulary,
            when the search is called.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, SuppressTokens
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 9, 0, 0, 1]]), state)
    >>> search = GreedySearch(constraints=[SuppressTokens([1])])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[3], max_length=3).tokens).tolist()
    [[[4, 4, 4]]]
    """

    ids: tuple[int, ...] = setting(dataclasses.MISSING, _IDS)

    def _ruled_out(self, generated, vocabulary):
        if max(self.ids) >= vocabulary:
            rule = f"SuppressTokens needs ids below the vocabulary size, {vocabulary}"
            raise ValueError(f"{rule}. Received: ids={self.ids!r}")
        return np.isin(np.arange(vocabulary), self.ids)  # [vocabulary]


def _token_sets(tokens: Tensor, is_in: Tensor, vocabulary: int) -> Tensor:
    """Returns the set of tokens of each row as a mask, bool `[rows, vocabulary]`.

    `is_in`, bool `[rows, length]`, says which of `tokens` are in the set.
    """
    rows, length = ops.shape(tokens)
    # Other tokens go to a column of their own, which is cut off.
    columns = ops.where(is_in, tokens, vocabulary)  # [rows, length]
    first_places = (vocabulary + 1) * ops.arange(rows, dtype="int32")
    places = ops.reshape(columns + ops.expand_dims(first_places, -1), (-1, 1))  # [rows * length, 1]
    marks = ops.scatter_update(
        ops.zeros((rows * (vocabulary + 1),), dtype="int32"),
        places,
        ops.ones((rows * length,), dtype="int32"),
    )
    return ops.reshape(marks, (rows, vocabulary + 1))[:, :vocabulary] > 0
