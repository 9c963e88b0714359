"""`Bracketed`: the words and brackets of a sentence, from a tree or from a line of EVALB."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer.parsing.trees import Tree, escape_brackets

_SPACE = r" \t\r\n\f\v"
_TEXT = rf"([^{_SPACE}()]*+)"
# A leaf, "(NN dog)"; a bracket that opens, with its label; one that closes; a word elsewhere.
_TOKENS = re.compile(rf"\({_TEXT}[{_SPACE}]++{_TEXT}[{_SPACE}]*+\)|\({_TEXT}|(\))|[^{_SPACE}()]++")


class Bracketed(NamedTuple):
    """Words and brackets of a sentence."""

    leaves: list[tuple[str, str]]  # tag and word of each; with `-LRB-` and `-RRB-`
    # Label, first leaf and the leaf after the last, None if it never closes, in order of opening.
    brackets: list[list]
    error: str | None  # EVALB's message if the text is not well-formed

    @classmethod
    def of(cls, source: Tree | str | None) -> "Bracketed":
        """Reads a tree, a line of text by the rules of EVALB, or None; an unnamed root is TOP."""
        leaves, brackets, opened, error = [], [], [], None
        for tag, word, label, closing in _read(source):
            if tag is not None:
                leaves.append((tag, word))
            elif label is not None:
                opened.append(len(brackets))
                brackets.append([label or "TOP" * (len(opened) == 1), len(leaves), None])
            elif not closing:
                # EVALB never gets past such a word; here it is left out.
                error = "More than two elements in a bracket"
            elif opened:
                brackets[opened.pop()][2] = len(leaves)
            else:
                error = error or "Bracketing is unbalanced (too many close bracket)"
        if opened and not error:
            error = "Bracketing is unbalanced (too many open bracket)"
        return cls(leaves, brackets, error)


def _read(source: Tree | str | None) -> Iterator[tuple]:
    """Yields tag and word of each leaf, the label where a bracket opens, `)` where it closes."""
    if isinstance(source, str):
        yield from (token.groups() for token in _TOKENS.finditer(source))
    elif source is not None:
        for part in source.walk():
            if part is None:
                yield None, None, None, ")"
            elif part.is_leaf:
                yield part.label, escape_brackets(part.word), None, None
            else:
                yield None, None, part.label, None
