"""`Bracketed`: the words and brackets of a sentence, from a tree or from a line of EVALB."""

import re
from typing import NamedTuple

from keras_transformer.parsing.trees import Tree, escape_brackets

_SPACE = r" \t\r\n\f\v"
_TEXT = rf"([^{_SPACE}()]*+)"
# A leaf, "(NN dog)"; a bracket that opens, with its label; one that closes; a word elsewhere.
_TOKENS = re.compile(rf"\({_TEXT}[{_SPACE}]++{_TEXT}[{_SPACE}]*+\)|\({_TEXT}|(\))|[^{_SPACE}()]++")


class Bracketed(NamedTuple):
    """Words and brackets of a sentence.

    Attributes:
        leaves: tag and word of each leaf; round brackets in words are `-LRB-` and `-RRB-`.
        brackets: label, first leaf and end (the leaf after the last) of each constituent, in the
            order in which they open; the end is None if the bracket never closes.
        error: EVALB's message if the text is not well-formed, else None.
    """

    leaves: list[tuple[str, str]]
    brackets: list[list]
    error: str | None = None

    @property
    def tags(self) -> list[str]:
        """The tags of the leaves."""
        return [tag for tag, _ in self.leaves]

    @classmethod
    def of(cls, source: Tree | str | None) -> "Bracketed":
        """Reads a tree, a line of text by the rules of EVALB, or None for no words.

        A line may contain several trees or none. A root without a label is TOP.
        """
        if isinstance(source, str):
            return cls._of_line(source)
        leaves, brackets, opened = [], [], []
        for part in () if source is None else source.walk():
            if part is None:
                brackets[opened.pop()][2] = len(leaves)
            elif part.is_leaf:
                leaves.append((part.label, escape_brackets(part.word)))
            else:
                _open(part.label, leaves, brackets, opened)
        return cls(leaves, brackets)

    @classmethod
    def _of_line(cls, text: str) -> "Bracketed":
        leaves, brackets, opened, error = [], [], [], None
        for token in _TOKENS.finditer(text):
            tag, word, label, closing = token.groups()
            if tag is not None:
                leaves.append((tag, word))
            elif label is not None:
                _open(label, leaves, brackets, opened)
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


def _open(label: str, leaves: list, brackets: list, opened: list[int]) -> None:
    label = label if label or opened else "TOP"
    opened.append(len(brackets))
    brackets.append([label, len(leaves), None])
