"""Which tokens of a vocabulary open and close constituents, and which stand for words."""

from typing import NamedTuple

import numpy as np

from keras_transformer.data.special_tokens import SPECIAL_PIECES, UNK_ID
from keras_transformer.data.subword_tokenizer import SubwordTokenizer
from keras_transformer.parsing.linearization import NUMBERS, PLACEHOLDER, Linearization
from keras_transformer.parsing.repair import is_symbol


class TreeSymbols(NamedTuple):
    """What every token of a vocabulary is in a tree, as `WellFormedTrees` takes it.

    Attributes:
        openings: int32 `[vocabulary]`, the number of the label that a token opens; -1 for others.
        closings: int32 `[vocabulary]`, the number of the label that a token closes; -1 for others.
            All are 0 if closing symbols have no label.
        words: bool `[vocabulary]`, which tokens stand for a word.
        numbers: int32 `[vocabulary]`, the number that a token is; -1 for others. None where the
            words are not written as numbers.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import Linearization, tree_symbols
    >>> symbols = tree_symbols(SubwordTokenizer(["(S", ")S", "XX"]), Linearization())
    >>> symbols.openings.tolist(), symbols.words.tolist()
    ([-1, -1, -1, -1, 0, -1, -1], [False, False, False, False, False, False, True])
    """

    openings: np.ndarray
    closings: np.ndarray
    words: np.ndarray
    numbers: np.ndarray | None = None


def tree_symbols(tokenizer, linearization: Linearization) -> TreeSymbols:
    """Returns what the tokens of a vocabulary are, where every symbol of a tree is one token.

    A label that is opened by one token and closed by none, or the reverse, counts as no symbol.
    Where the words are written, the unknown token stands for a word too.

    Args:
        tokenizer: the target's tokenizer.
        linearization: how trees are written.

    Returns:
        `TreeSymbols`.

    Raises:
        ValueError: if the symbols are not one token each, or there is no tree of them.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import Linearization, tree_symbols
    >>> tokenizer = SubwordTokenizer(["(NP", "(S", ")NP", ")S", "NN", "VBZ"])
    >>> tree_symbols(tokenizer, Linearization(tags=True)).closings.tolist()
    [-1, -1, -1, -1, -1, -1, 0, 1, -1, -1]
    """
    if not linearization.leaf_is_one_symbol:
        raise ValueError(
            "With tags=True, and words=True or numbers=True, a leaf is three symbols; it must be "
            f"one. Received: linearization={linearization!r}"
        )
    if not isinstance(tokenizer, SubwordTokenizer):
        raise ValueError(
            "Every symbol of a tree must be one token: the target needs a SubwordTokenizer. "
            f"Received: a {type(tokenizer).__name__}"
        )
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    first = len(SPECIAL_PIECES)
    part = next((piece for piece in pieces if piece.endswith("@@")), None)
    if part is not None:
        raise ValueError(
            "Every symbol of a tree must be one token; a piece that ends in @@ is a part of one. "
            f"Received: a target vocabulary with {part!r}"
        )
    opened = [_label(piece, "(") for piece in pieces]
    closed = [_label(piece, ")") for piece in pieces]
    if linearization.labelled_closing:
        shared = sorted(set(filter(None, opened)) & set(filter(None, closed)))
        numbers = {label: number for number, label in enumerate(shared)}
        openings = [numbers.get(label, -1) for label in opened]
        closings = [numbers.get(label, -1) for label in closed]
    else:
        openings = [-1 if label is None else 0 for label in opened]
        closings = [0 if piece == ")" else -1 for piece in pieces]
    numbers = None
    if linearization.numbers:
        missing = sorted(set(NUMBERS) - set(pieces), key=int)
        if missing:
            raise ValueError(
                f"The target vocabulary must have all numbers from 0 to {NUMBERS[-1]}. "
                f"Received: one without {missing[0]!r}"
            )
        values = {number: value for value, number in enumerate(NUMBERS)}
        numbers = np.array([values.get(piece, -1) for piece in pieces], "int32")
        words = numbers >= 0
    elif linearization.words or linearization.tags:
        words = [is_symbol(piece) for piece in pieces]
    else:
        words = [piece == PLACEHOLDER for piece in pieces]
    words[:first] = [linearization.words and token == UNK_ID for token in range(first)]
    symbols = TreeSymbols(
        np.array(openings, "int32"), np.array(closings, "int32"), np.array(words, bool), numbers
    )
    if max(openings) < 0 or max(closings) < 0 or not any(words):
        raise ValueError(
            "The target vocabulary has no tree: it needs an opening symbol with its closing one, "
            f"and one for a word. Received: pieces {pieces[first:][:8]!r}, "
            f"linearization={linearization!r}"
        )
    return symbols


def _label(piece, bracket):
    """The label of an opening or closing symbol; None for anything else."""
    return piece[1:] if piece.startswith(bracket) and is_symbol(piece[1:]) else None
