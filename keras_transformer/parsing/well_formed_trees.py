"""A constraint to well-formed trees over the words of each sentence."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.constraints.constraint import Generated
from keras_transformer.layers.checks import check_positive_integer, check_rank
from keras_transformer.layers.dtypes import Tensor

# Classes of tokens. A closing token has `_FIRST_CLOSING` and the number of its label; a word has a
# class behind those, and the number of the word, so that a row can allow the next number alone.
_NEVER, _OPENING, _EOS, _FIRST_CLOSING = -1, 0, 1, 2
_NOTHING = -2  # the class of no token


class _State(NamedTuple):
    words_left: Tensor  # int32 [rows]
    words_done: Tensor  # int32 [rows]
    depth: Tensor  # int32 [rows], the number of open constituents
    has_content: Tensor  # bool [rows], whether the innermost constituent has a part
    labels: Tensor  # int32 [rows, max_depth], a stack of the open constituents' labels


class WellFormedTrees:
    """Makes each hypothesis the symbols of one tree over the words of its sentence.

    `(S (NP XX XX )NP (VP XX )VP )S`: a token opens a constituent, closes one or is a word. The
    first token opens the root. Words and openings are allowed while words are left. A symbol of its
    label closes a constituent that has a part; the root closes after the last word, and then the
    hypothesis ends. A constituent opens only if the maximum length, with EOS, leaves room to close
    it. So each hypothesis can be completed at every step, unless another constraint forbids it. A
    sentence without words, or with a maximum below its number of words plus 3, has no hypothesis.

    The numbers of words are data of a call, so this constraint is given to the search's call, not
    to the search. Each symbol must be one token; `tree_symbols` returns the arrays of a vocabulary.

    Args:
        num_words: int32 `[batch]`, the number of words of each sentence.
        openings, closings, words, numbers: `[vocabulary]`, as in `TreeSymbols`. The words are
            numbered from 0 to the largest of `numbers`, and then from 0 again; None if any token of
            `words` stands for any word.
        max_depth: maximum number of open constituents.

    Raises:
        ValueError: if an argument has another shape, or a token has several roles.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> from keras_transformer.parsing import WellFormedTrees
    >>> step = lambda tokens, rows, state: (ops.array([[9.0, 9, 9, 8, 1, 2, 3, 5]] * 2), state)
    >>> trees = WellFormedTrees(  # 4 is "(S", 5 ")S", 6 "XX", and 7 another "(S"
    ...     num_words=[2, 1],
    ...     openings=[-1, -1, -1, -1, 0, -1, -1, 0],
    ...     closings=[-1, -1, -1, -1, -1, 0, -1, -1],
    ...     words=np.arange(8) == 6,
    ...     max_depth=2,
    ... )
    >>> result = GreedySearch()(step, (), [9, 9], max_length=9, constraints=[trees])
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[7, 7, 6, 6, 5, 5, 3, 0, 0]], [[7, 7, 6, 5, 5, 3, 0, 0, 0]]]
    """

    def __init__(
        self,
        num_words: Tensor,
        openings: np.ndarray,
        closings: np.ndarray,
        words: np.ndarray,
        numbers: np.ndarray | None = None,
        max_depth: int = 64,
    ) -> None:
        check_positive_integer("max_depth", max_depth, 2**31 - 1)
        self.num_words = ops.cast(ops.convert_to_tensor(num_words), "int32")
        check_rank("num_words", self.num_words, "[batch]")
        self.openings = np.asarray(openings, "int32")
        self.closings = np.asarray(closings, "int32")
        self.words = np.asarray(words, bool)
        self.max_depth = max_depth
        shapes = self.openings.shape, self.closings.shape, self.words.shape
        if len(shapes[0]) != 1 or len(set(shapes)) > 1:
            raise ValueError(
                "`openings`, `closings` and `words` must have the shape [vocabulary]. "
                f"Received: shapes {shapes}"
            )
        num_roles = (self.openings >= 0) * 1 + (self.closings >= 0) + self.words
        if num_roles.max() > 1:
            raise ValueError(
                "A token must open a constituent, close one, or stand for a word. "
                f"Received: token {num_roles.argmax()} with several of these roles"
            )
        numbers = np.asarray(self.words - 1 if numbers is None else numbers, "int32")
        if numbers.shape != shapes[0] or np.any((numbers >= 0) != self.words):
            raise ValueError(
                "`numbers` must have the shape [vocabulary], and a number for each token of "
                f"`words` and no other. Received: numbers={numbers!r}"
            )
        self._num_numbers = max(int(numbers.max()) + 1, 1)
        if np.setdiff1d(np.arange(numbers.max()), numbers).size:
            raise ValueError(
                "`numbers` must have every number up to its largest, or words would have no "
                f"token. Received: numbers={numbers!r}"
            )
        self._first_word = _FIRST_CLOSING + self.closings.max() + 1
        self._classes = np.select(
            [self.openings >= 0, self.words, self.closings >= 0],
            [_OPENING, self._first_word + numbers, _FIRST_CLOSING + self.closings],
            _NEVER,
        ).astype("int32")

    def start(self, max_lengths: Tensor, width: int) -> _State:
        del max_lengths
        words_left = ops.repeat(self.num_words, width)  # [rows]
        zeros = ops.zeros_like(words_left)
        labels = ops.repeat(ops.expand_dims(zeros, -1), self.max_depth, axis=1)
        return _State(words_left, zeros, zeros, ops.zeros_like(zeros, dtype="bool"), labels)

    def __call__(
        self, state: _State, log_probabilities: Tensor, generated: Generated
    ) -> tuple[_State, Tensor]:
        if log_probabilities.shape[-1] != len(self._classes):
            raise ValueError(
                "The arrays must be of the size of the vocabulary, "
                f"{log_probabilities.shape[-1]}. Received: {len(self._classes)}"
            )
        state = self._read(state, generated.last_tokens)
        depth = state.depth
        has_words, is_open, has_begun = state.words_left > 0, depth > 0, generated.length > 0
        # An opening needs its closing, a closing for each open constituent, the words and EOS.
        num_tokens = generated.length + state.words_left + depth + 3
        has_room = (depth < self.max_depth) & (num_tokens <= generated.max_lengths)
        may_open = has_words & has_room & (is_open | ~has_begun)
        may_close = is_open & state.has_content & ((depth > 1) | ~has_words)
        place = ops.expand_dims(ops.maximum(depth - 1, 0), -1)
        innermost = ops.take_along_axis(state.labels, place, axis=1)[:, 0]
        closing = ops.where(may_close, _FIRST_CLOSING + innermost, _NOTHING)
        next_word = self._first_word + ops.mod(state.words_done, self._num_numbers)
        # A row allows at most these classes of tokens.
        allowed_classes = (
            ops.where(may_open, _OPENING, _NOTHING),
            ops.where(has_words & is_open, next_word, _NOTHING),
            ops.where(has_begun & ~is_open, _EOS, closing),
        )
        is_eos = np.arange(len(self._classes)) == generated.eos_id
        classes = ops.convert_to_tensor(np.where(is_eos, _EOS, self._classes), dtype="int32")
        opening, word, end = (
            ops.equal(classes, ops.expand_dims(row_class, -1)) for row_class in allowed_classes
        )  # [rows, vocabulary]
        return state, ops.where(opening | word | end, log_probabilities, float("-inf"))

    def _read(self, state: _State, last_tokens: Tensor) -> _State:
        """Returns the state after the last tokens; BOS and padding do not change it."""
        opened, has_closed, is_word = (
            ops.take(ops.convert_to_tensor(array), last_tokens, axis=0)
            for array in (self.openings, self.closings >= 0, self.words)
        )  # [rows]
        has_opened = opened >= 0
        levels = ops.arange(self.max_depth, dtype="int32")
        is_top = ops.equal(levels, ops.expand_dims(state.depth, -1))  # [rows, max_depth]
        is_pushed = is_top & ops.expand_dims(has_opened, -1)
        change = ops.cast(has_opened, "int32") - ops.cast(has_closed, "int32")
        num_new_words = ops.cast(is_word, "int32")
        return _State(
            state.words_left - num_new_words,
            state.words_done + num_new_words,
            # A dead row may have any tokens, so its depth is clipped.
            ops.clip(state.depth + change, 0, self.max_depth),
            is_word | has_closed | (state.has_content & ~has_opened),
            ops.where(is_pushed, ops.expand_dims(opened, -1), state.labels),
        )
