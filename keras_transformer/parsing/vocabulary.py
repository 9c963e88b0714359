"""`TreeSymbols`: the role of each token of a vocabulary in trees."""

from typing import NamedTuple

import numpy as np

from keras_transformer.data.special_tokens import SPECIAL_PIECES, UNK_ID
from keras_transformer.data.subword_tokenizer import SubwordTokenizer
from keras_transformer.parsing.linearization import NUMBERS, Linearization
from keras_transformer.parsing.trees import PLACEHOLDER, is_symbol


class TreeSymbols(NamedTuple):
    """The role of each token of a vocabulary in trees, as arguments of `WellFormedTrees`.

    Attributes:
        openings: int32 `[vocabulary]`, the number of the label that a token opens; -1 for others.
        closings: int32 `[vocabulary]`, the number of the label that a token closes; -1 for others.
            All are 0 if closing symbols do not have labels.
        words: bool `[vocabulary]`, whether a token stands for a word.
        numbers: int32 `[vocabulary]`, the value of a number; -1 for other tokens. None unless words
            are written as numbers.

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


def tree_symbols(tokenizer: SubwordTokenizer, linearization: Linearization) -> TreeSymbols:
    """Returns the roles of the tokens of a vocabulary in which each symbol of a tree is one token.

    A token that opens a label which no token closes, or the reverse, has no role. If words are
    written, the unknown token stands for a word too.

    Args:
        tokenizer: the target's tokenizer.
        linearization: the form of the trees.

    Raises:
        ValueError: if a symbol is not one token, or the vocabulary lacks the symbols of any tree.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import Linearization, tree_symbols
    >>> tokenizer = SubwordTokenizer(["(NP", "(S", ")NP", ")S", "NN", "VBZ"])
    >>> tree_symbols(tokenizer, Linearization(tags=True)).closings.tolist()
    [-1, -1, -1, -1, -1, -1, 0, 1, -1, -1]
    """
    if not linearization.leaf_is_one_symbol:
        raise ValueError(
            "A leaf must be one symbol; with tags=True, and words=True or numbers=True, it is "
            f"three. Received: linearization={linearization!r}"
        )
    if not isinstance(tokenizer, SubwordTokenizer):
        raise ValueError(
            "The tokenizer of the target must be a SubwordTokenizer, so that each symbol of a tree "
            f"is one token. Received: a {type(tokenizer).__name__}"
        )
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    parts = [piece for piece in pieces if piece.endswith("@@")]
    if parts:
        raise ValueError(
            "Each symbol of a tree must be one token; a piece that ends in @@ is a part of a "
            f"symbol. Received: a target vocabulary with {parts[0]!r}"
        )
    opened, closed = [[_label(piece, bracket) for piece in pieces] for bracket in "()"]
    if not linearization.labelled_closing:  # One label stands for all.
        opened = [None if label is None else ")" for label in opened]
        closed = [")" if piece == ")" else None for piece in pieces]
    labels = sorted((set(opened) & set(closed)) - {None})
    openings, closings = (
        [labels.index(label) if label in labels else -1 for label in side]
        for side in (opened, closed)
    )
    numbers = None
    if linearization.numbers:
        missing = [number for number in NUMBERS if number not in pieces]
        if missing:
            raise ValueError(
                f"The target vocabulary must have all numbers from 0 to {NUMBERS[-1]}. "
                f"Received: a target vocabulary without {missing[0]!r}"
            )
        numbers = [NUMBERS.index(piece) if piece in NUMBERS else -1 for piece in pieces]
        words = [number >= 0 for number in numbers]
    elif linearization.words or linearization.tags:
        words = [is_symbol(piece) for piece in pieces]
    else:
        words = [piece == PLACEHOLDER for piece in pieces]
    first = len(SPECIAL_PIECES)
    words[:first] = [linearization.words and token == UNK_ID for token in range(first)]
    if max(openings) < 0 or max(closings) < 0 or not any(words):
        raise ValueError(
            "The target vocabulary must have an opening symbol, its closing symbol, and a symbol "
            f"for a word. Received: pieces {pieces[first:][:8]!r}, linearization={linearization!r}"
        )
    return TreeSymbols(
        np.array(openings, "int32"),
        np.array(closings, "int32"),
        np.array(words, bool),
        None if numbers is None else np.array(numbers, "int32"),
    )


def _label(piece: str, bracket: str) -> str | None:
    return piece[1:] if piece.startswith(bracket) and is_symbol(piece[1:]) else None
