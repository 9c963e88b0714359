"""`WellFormedTrees`, a constraint of searches, and the role of each token of a vocabulary in it."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.checks import check_positive_integer
from keras_transformer.data.lookup_tokenizers import SubwordTokenizer
from keras_transformer.data.tokenizer import SPECIAL_PIECES, UNK_ID, Tokenizer
from keras_transformer.decoding.constraints import Generated
from keras_transformer.layers.tensors import Tensor, check_shape
from keras_transformer.parsing.joined_symbols import count_brackets
from keras_transformer.parsing.linearization import NUMBERS, Linearization

# Classes of tokens. The class of a closing token is `_FIRST_CLOSING` plus the number of its label.
# The classes of words follow, one for each number, so that a row can allow only the next number.
_NEVER, _OPENING, _EOS, _FIRST_CLOSING = -1, 0, 1, 2
_NOTHING = -2  # the class of no token


class TreeSymbols(NamedTuple):
    """The role of each token of a vocabulary in trees, as arguments of `WellFormedTrees`.

    Attributes:
        openings, closings: int32 `[vocabulary]`, the number of the label that a token opens or
            closes; -1 for others. All are 0 if closing symbols do not have labels. For the joined
            form, the number of constituents that a token opens or closes (`JoinedTrees`).
        words: bool `[vocabulary]`, whether a token stands for a word.
        numbers: int32 `[vocabulary]`, the value of a number; -1 for other tokens. None unless words
            are written as numbers.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import Linearization, tree_symbols
    >>> tree_symbols(SubwordTokenizer(["(S", ")S", "XX"]), Linearization()).openings.tolist()
    [-1, -1, -1, -1, 0, -1, -1]
    """

    openings: np.ndarray
    closings: np.ndarray
    words: np.ndarray
    numbers: np.ndarray | None = None


def tree_symbols(tokenizer: Tokenizer, linearization: Linearization) -> TreeSymbols:
    """Returns the roles of the tokens of a vocabulary in which each symbol of a tree is one token.

    A token that opens a label which no token closes, or the reverse, has no role. If words are
    written, the unknown token stands for a word too.

    Args:
        tokenizer: The target's tokenizer.
        linearization: The form of the trees.

    Raises:
        ValueError: If a symbol is not one token, a number is missing, or no tree can be written.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import Linearization, tree_symbols
    >>> tokenizer = SubwordTokenizer(["(NP", "(S", ")NP", ")S", "NN", "VBZ"])
    >>> tree_symbols(tokenizer, Linearization(tags=True)).closings.tolist()
    [-1, -1, -1, -1, -1, -1, 0, 1, -1, -1]
    """
    if not linearization.leaf_is_one_symbol:
        rule = "A leaf must be one symbol; with tags=True, and words=True or numbers=True, it is"
        raise ValueError(f"{rule} three. Received: {linearization=}")
    if not isinstance(tokenizer, SubwordTokenizer):
        rule = "The tokenizer of the target must be a SubwordTokenizer, so that each symbol of a"
        raise ValueError(f"{rule} tree is one token. Received: a {type(tokenizer).__name__}")
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    for piece in pieces:
        if piece.endswith("@@"):
            rule = "Each symbol of a tree must be one token; a piece that ends in @@ is a part of a"
            raise ValueError(f"{rule} symbol. Received: a target vocabulary with {piece!r}")
    if linearization.joined:
        return _joined_symbols(pieces)
    roles = [linearization.role(piece) for piece in pieces]
    # Without labels on closing symbols, one label stands for all.
    has_labels = linearization.labelled_closing
    roles = [(kind, "" if kind == "(" and not has_labels else label) for kind, label in roles]
    opened, closed = ({label for kind, label in roles if kind == bracket} for bracket in "()")
    numbers_of = {label: number for number, label in enumerate(sorted(opened & closed))}
    openings, closings = (
        np.array([numbers_of.get(label, -1) if kind == bracket else -1 for kind, label in roles])
        for bracket in "()"
    )
    words = np.array([kind == "word" for kind, _ in roles])
    words[: len(SPECIAL_PIECES)] = False
    words[UNK_ID] = linearization.words
    numbers = None
    if linearization.numbers:
        missing = [number for number in NUMBERS if number not in pieces]
        if missing:
            rule = f"The target vocabulary must have all numbers from 0 to {NUMBERS[-1]}"
            raise ValueError(f"{rule}. Received: a target vocabulary without {missing[0]!r}")
        numbers = np.array([int(x) if x in NUMBERS else -1 for x in pieces], "int32")
        words = numbers >= 0
    if openings.max() < 0 or closings.max() < 0 or not words.any():
        rule = "The target vocabulary must have an opening symbol, its closing symbol, and a symbol"
        received = f"pieces {pieces[len(SPECIAL_PIECES) :][:8]!r}, {linearization=}"
        raise ValueError(f"{rule} for a word. Received: {received}")
    return TreeSymbols(openings.astype("int32"), closings.astype("int32"), words, numbers)


def _joined_symbols(pieces):
    counts = [count_brackets(piece) for piece in pieces]
    openings, closings = np.array([count or (0, 0) for count in counts], "int32").T
    if not openings.any():
        rule = "The target vocabulary must have a symbol that opens a constituent"
        raise ValueError(f"{rule}. Received: pieces {pieces[len(SPECIAL_PIECES) :][:8]!r}")
    return TreeSymbols(openings, closings, np.array([count is not None for count in counts]))


class _State(NamedTuple):
    words_left: Tensor  # int32 [rows]
    words_done: Tensor  # int32 [rows]
    depth: Tensor  # int32 [rows], the number of open constituents
    has_content: Tensor  # bool [rows], whether the innermost constituent has a part
    labels: Tensor  # int32 [rows, max_depth], a stack of the open constituents' labels
    # int32 [rows], the length of the unary chain if the innermost constituent ended here: the
    # constituents in a row, from it down, that have a single part.
    chain: Tensor
    # int32 [rows], the open constituents in a row, from the innermost up, in which no part has
    # ended (not counting those of the innermost). `max_unary + 1` of them need another word, the
    # second part of one of them; each word that those above need counts `max_unary + 1` here.
    demand: Tensor
    demands: Tensor  # int32 [rows, max_depth], a stack of what `demand` was at each opening


class WellFormedTrees:
    """Constrains each hypothesis to the symbols of one tree over the words of its sentence.

    In `(S (NP XX XX )NP (VP XX )VP )S` a token opens a constituent, closes one or is a word. A
    constituent opens only if the maximum length, with EOS, leaves room to close it. A sentence
    without words, or whose maximum length is below its number of words plus 3, has no hypothesis.

    Pass this constraint when you call a search, because it contains the numbers of words of that
    call. `tree_symbols` returns the arrays of a vocabulary whose symbols are one token each.

    Args:
        num_words: int32 `[batch]`, the number of words of each sentence.
        openings, closings, words, numbers: `[vocabulary]`, as in `TreeSymbols`. Words are numbered
            from 0 to the largest of `numbers`, and then from 0 again; None for no numbers.
        max_depth: Maximum number of open constituents.
        max_unary: Maximum number of constituents in a row that have a single part each.

    Raises:
        ValueError: If an argument has another shape, or a token has several roles.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> from keras_transformer.parsing import WellFormedTrees
    >>> step = lambda tokens, parents, state: (ops.array([[9.0, 9, 9, 8, 1, 2, 3, 5]] * 2), state)
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
        max_unary: int = Linearization.max_unary,
    ):
        check_positive_integer("max_depth", max_depth, 2**31 - 1)
        check_positive_integer("max_unary", max_unary)
        self.num_words = ops.cast(ops.convert_to_tensor(num_words), "int32")
        check_shape("num_words", self.num_words, "[batch]")
        self.openings = np.asarray(openings, "int32")
        self.closings = np.asarray(closings, "int32")
        self.words = np.asarray(words, bool)
        self.max_depth = max_depth
        self._max_unary = min(max_unary, max_depth)
        shapes = self.openings.shape, self.closings.shape, self.words.shape
        if len(shapes[0]) != 1 or len(set(shapes)) > 1:
            rule = "`openings`, `closings` and `words` must have the shape [vocabulary]"
            raise ValueError(f"{rule}. Received: shapes {shapes}")
        num_roles = np.sum([self.openings >= 0, self.closings >= 0, self.words], axis=0)
        if num_roles.max() > 1:
            raise ValueError(
                "A token must open a constituent, close one, or stand for a word. "
                f"Received: token {num_roles.argmax()} with several of these roles"
            )
        numbers = np.asarray(np.where(self.words, 0, -1) if numbers is None else numbers, "int32")
        self._num_numbers = max(int(numbers.max()) + 1, 1)
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
        stack = ops.repeat(ops.expand_dims(zeros, -1), self.max_depth, axis=1)
        has_content = ops.zeros_like(zeros, dtype="bool")
        return _State(words_left, zeros, zeros, has_content, stack, zeros, zeros, stack)

    def __call__(
        self, state: _State, log_probabilities: Tensor, generated: Generated
    ) -> tuple[_State, Tensor]:
        state = self._read(state, generated.last_tokens)
        depth = state.depth
        has_words, is_open, has_begun = state.words_left > 0, depth > 0, generated.length > 0
        # An opening needs its closing, a closing for each open constituent, the words and EOS.
        num_tokens = generated.length + state.words_left + depth + 3
        has_room = (depth < self.max_depth) & (num_tokens <= generated.max_lengths)
        # The words that unary chains need after this token must be left then.
        demand_if_opened = self._opened_demand(state)
        may_open = has_words & has_room & (is_open | ~has_begun)
        may_open = may_open & (demand_if_opened // (self._max_unary + 1) < state.words_left)
        may_write = is_open & ((state.demand - 1) // (self._max_unary + 1) < state.words_left)
        may_close = is_open & state.has_content & ((depth > 1) | ~has_words)
        may_close = may_close & (state.chain <= self._max_unary)
        closing = ops.where(may_close, _FIRST_CLOSING + _top(state.labels, depth), _NOTHING)
        next_word = self._first_word + ops.mod(state.words_done, self._num_numbers)
        # A row allows at most these classes of tokens.
        allowed_classes = (
            ops.where(may_open, _OPENING, _NOTHING),
            ops.where(may_write & has_words, next_word, _NOTHING),
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
        outer = _top(state.demands, state.depth)
        demand = ops.where(has_closed, outer, state.demand)
        # A word, or the constituent that has ended, may be the first part.
        is_first = ops.where(is_word, ~state.has_content, has_closed & (outer < state.demand))
        num_new_words = ops.cast(is_word, "int32")
        return _State(
            state.words_left - num_new_words,
            state.words_done + num_new_words,
            # A dead row may have any tokens, so its depth is clipped.
            ops.clip(state.depth + change, 0, self.max_depth),
            is_word | has_closed | (state.has_content & ~has_opened),
            ops.where(is_pushed, ops.expand_dims(opened, -1), state.labels),
            ops.where(is_first, state.chain + 1, 0),
            ops.where(has_opened, self._opened_demand(state), demand),
            ops.where(is_pushed, ops.expand_dims(state.demand, -1), state.demands),
        )

    def _opened_demand(self, state):
        """Returns the `demand` after an opening."""
        size = self._max_unary + 1
        # A constituent with a part before this one is not unary, and ends the chain above.
        after_part = (state.demand - 1) // size * size + 1
        return ops.where(state.has_content, after_part, state.demand + 1)


def _top(stack, depth):
    """Returns the last of the `depth` elements of stacks `[rows, max_depth]`."""
    return ops.take_along_axis(stack, ops.expand_dims(ops.maximum(depth - 1, 0), -1), axis=1)[:, 0]
