"""The joined form of trees: the brackets around each word as one symbol."""

import re
from collections.abc import Sequence

from keras_transformer.parsing.trees import PLACEHOLDER, SPACE

_JOINED = re.compile(rf"((?:\([^{SPACE}()]+)*)(\)*)")  # the brackets before and after a word


def join_symbols(symbols: Sequence[str]) -> list[str]:
    """Returns one symbol for each word: its opening brackets before it and its closing ones after.

    Args:
        symbols: Brackets of one tree, closing ones without labels, and `XX` for each word.

    Example:

    >>> from keras_transformer.parsing.joined_symbols import join_symbols
    >>> join_symbols(["(S", "(NP", "XX", "XX", ")", "(VP", "XX", ")", ")"])
    ['(S(NP', ')', '(VP']
    """
    joined: list[str] = []
    before = ""
    for symbol in symbols:
        if symbol == PLACEHOLDER:
            joined.append(before)
            before = ""
        elif symbol == ")":
            joined[-1] += symbol
        else:
            before += symbol
    joined[-1] = joined[-1].rstrip(")")
    return [symbol or PLACEHOLDER for symbol in joined]


def split_symbols(joined: Sequence[str]) -> list[str]:
    """Returns the brackets and words of joined symbols, with the brackets after the last word.

    Args:
        joined: Any strings; those that are not joined symbols stay as they are.
    """
    symbols: list[str] = []
    depth = 0
    for number, symbol in enumerate(joined, start=1):
        if symbol == PLACEHOLDER or (counts := count_brackets(symbol)) is None:
            symbols.append(symbol)
            continue
        num_opened, num_closed = counts
        opened = symbol.rstrip(")").split("(")[1:]
        symbols += [f"({label}" for label in opened] + [PLACEHOLDER]
        # A bracket after the last word is superfluous: "" is unknown, and counts as a repair.
        is_last = number == len(joined)
        symbols += ["" if is_last else ")"] * num_closed
        depth += num_opened - num_closed * (not is_last)
    return symbols + [")"] * depth


def count_brackets(joined: str) -> tuple[int, int] | None:
    """Returns how many constituents a joined symbol opens and closes; None if it is not one.

    Args:
        joined: Any string.
    """
    match = _JOINED.fullmatch("" if joined == PLACEHOLDER else joined or " ")
    return match and (match[1].count("("), len(match[2]))
