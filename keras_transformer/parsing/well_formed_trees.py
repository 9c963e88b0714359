"""Only sequences of symbols that are a tree over the words of the sentence."""

import numpy as np
from keras import ops

from keras_transformer.layers.checks import check_positive_integer

# What a token is: one of these, `_FIRST_CLOSING` and the label that it closes, or behind those the
# number of a word.
_NEVER, _OPENING, _WORD, _EOS, _FIRST_CLOSING = -1, 0, 1, 2, 3
_NOTHING = -2  # the class of no token


class WellFormedTrees:
    """Makes every hypothesis the symbols of one tree, over as many words as the sentence has.

    `(S (NP XX XX )NP (VP XX )VP )S`: a token opens a constituent, closes one or is a word. The
    first opens the root; words and openings come while words are left; a constituent ends with a
    symbol that closes its label, once there is something in it, and the root when no word is left;
    then the hypothesis ends. No constituent is opened that the sentence's maximum length, EOS
    counted, would leave no room to close. So every hypothesis that is alive at a step can be
    finished, unless another constraint forbids it. A sentence without words, or whose maximum is
    below its number of words plus 3, has no hypothesis.

    The numbers of words are data of a call, so this constraint is given to the search's call, not
    to the search. Every symbol has to be one token. `keras_transformer.data.tree_symbols` gives
    the arrays for a vocabulary.

    Args:
        num_words: int32 `[batch]`, the number of words of each sentence.
        openings: int `[vocabulary]`, the number of the label that a token opens; -1 for others.
        closings: int `[vocabulary]`, the number of the label that a token closes; -1 for others.
            Labels of one number may close each other: give all the same one if closing symbols
            have no label.
        words: bool `[vocabulary]`, which tokens stand for a word.
        numbers: int `[vocabulary]`, the number that such a token is; -1 for others. The words are
            then numbered from 0 to the largest of these, and on from 0. None if any of the tokens
            may be any word.
        max_depth: the most constituents that may be open at once.

    Raises:
        ValueError: if an argument has another shape, or a token is of several kinds.

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

    def __init__(self, num_words, openings, closings, words, numbers=None, max_depth=64):
        check_positive_integer("max_depth", max_depth, 2**31 - 1)
        self.num_words = ops.cast(ops.convert_to_tensor(num_words), "int32")
        self.openings = np.asarray(openings, "int32")
        self.closings = np.asarray(closings, "int32")
        self.words = np.asarray(words, bool)
        self.max_depth = max_depth
        if len(self.num_words.shape) != 1:
            raise ValueError(
                "`num_words` must have the shape [batch]. "
                f"Received: num_words.shape={tuple(self.num_words.shape)}"
            )
        shapes = self.openings.shape, self.closings.shape, self.words.shape
        if len(shapes[0]) != 1 or len(set(shapes)) > 1:
            raise ValueError(
                "`openings`, `closings` and `words` must have the shape [vocabulary]. "
                f"Received: shapes {shapes}"
            )
        kinds = (self.openings >= 0) * 1 + (self.closings >= 0) + self.words
        if kinds.max() > 1:
            raise ValueError(
                "A token opens a constituent, closes one, or is a word. "
                f"Received: token {kinds.argmax()} is several of these"
            )
        # A number has a class of its own, so that a row can allow that of its next word alone.
        self._first_number, self._num_numbers = _FIRST_CLOSING + self.closings.max() + 1, 0
        of_words = np.full(shapes[0], _WORD)
        if numbers is not None:
            numbers = np.asarray(numbers, "int32")
            self._num_numbers = int(numbers.max()) + 1
            if numbers.shape != shapes[0] or np.any((numbers >= 0) != self.words):
                raise ValueError(
                    "`numbers` must have the shape [vocabulary], and a number for every token of "
                    f"`words` and no other. Received: numbers={numbers!r}"
                )
            if set(range(self._num_numbers)) - set(numbers.tolist()):
                raise ValueError(
                    "`numbers` must have every number up to its largest, or words would have no "
                    f"token. Received: numbers={numbers!r}"
                )
            of_words = self._first_number + numbers
        self._classes = np.select(
            [self.openings >= 0, self.words, self.closings >= 0],
            [_OPENING, of_words, _FIRST_CLOSING + self.closings],
            _NEVER,
        ).astype("int32")

    def start(self, max_lengths, width):
        del max_lengths
        words_left = ops.repeat(self.num_words, width)  # [rows]
        labels = ops.expand_dims(ops.zeros_like(words_left), -1)
        return {
            "words_left": words_left,
            "words_done": ops.zeros_like(words_left),
            "depth": ops.zeros_like(words_left),
            # Whether the innermost constituent has something in it.
            "has_content": ops.zeros_like(words_left, dtype="bool"),
            "labels": ops.repeat(labels, self.max_depth, axis=1),  # [rows, max_depth], a stack
        }

    def __call__(self, state, log_probabilities, generated):
        if log_probabilities.shape[-1] != len(self._classes):
            raise ValueError(
                "The arrays must be of the size of the vocabulary, "
                f"{log_probabilities.shape[-1]}. Received: {len(self._classes)}"
            )
        state = self._read(state, generated.last_tokens)
        words_left, depth = state["words_left"], state["depth"]
        has_words, has_begun = words_left > 0, generated.length > 0
        is_open = depth > 0
        # An opening is followed by its closing, those of all that is open, the words and EOS.
        num_tokens = generated.length + words_left + depth + 3
        may_open = ops.logical_and(
            ops.logical_and(has_words, ops.logical_or(is_open, ops.logical_not(has_begun))),
            ops.logical_and(depth < self.max_depth, num_tokens <= generated.max_lengths),
        )
        may_add_word = ops.logical_and(has_words, is_open)
        may_close = ops.logical_and(
            state["has_content"], ops.logical_or(depth > 1, ops.logical_not(has_words))
        )
        may_close = ops.logical_and(may_close, is_open)
        may_end = ops.logical_and(has_begun, ops.logical_not(is_open))
        place = ops.expand_dims(ops.maximum(depth - 1, 0), -1)
        innermost = ops.take_along_axis(state["labels"], place, axis=1)[:, 0]
        end = ops.where(may_close, _FIRST_CLOSING + innermost, _NOTHING)
        next_word = _WORD
        if self._num_numbers:
            next_word = self._first_number + ops.mod(state["words_done"], self._num_numbers)
        # A row allows at most these classes of tokens.
        allowed_classes = (
            ops.where(may_open, _OPENING, _NOTHING),
            ops.where(may_add_word, next_word, _NOTHING),
            ops.where(may_end, _EOS, end),
        )
        is_eos = np.arange(len(self._classes)) == generated.eos_id
        classes = ops.convert_to_tensor(np.where(is_eos, _EOS, self._classes), dtype="int32")
        opening, word, end = (
            ops.equal(classes, ops.expand_dims(row_class, -1)) for row_class in allowed_classes
        )  # [rows, vocabulary]
        is_allowed = ops.logical_or(opening, ops.logical_or(word, end))
        return state, ops.where(is_allowed, log_probabilities, float("-inf"))

    def _read(self, state, last_tokens):
        """The state after the last tokens; BOS and padding change nothing."""
        opened = ops.take(ops.convert_to_tensor(self.openings), last_tokens, axis=0)  # [rows]
        has_opened = opened >= 0
        has_closed = ops.take(ops.convert_to_tensor(self.closings >= 0), last_tokens, axis=0)
        is_word = ops.take(ops.convert_to_tensor(self.words), last_tokens, axis=0)
        is_top = ops.equal(
            ops.arange(self.max_depth, dtype="int32"), ops.expand_dims(state["depth"], -1)
        )  # [rows, max_depth]
        is_pushed = ops.logical_and(is_top, ops.expand_dims(has_opened, -1))
        # Rows that are dead may hold anything, so that the depth is kept in its bounds.
        change = ops.cast(has_opened, "int32") - ops.cast(has_closed, "int32")
        num_new_words = ops.cast(is_word, "int32")
        return {
            "words_left": state["words_left"] - num_new_words,
            "words_done": state["words_done"] + num_new_words,
            "depth": ops.clip(state["depth"] + change, 0, self.max_depth),
            "has_content": ops.logical_or(
                ops.logical_or(is_word, has_closed),
                ops.logical_and(state["has_content"], ops.logical_not(has_opened)),
            ),
            "labels": ops.where(is_pushed, ops.expand_dims(opened, -1), state["labels"]),
        }
