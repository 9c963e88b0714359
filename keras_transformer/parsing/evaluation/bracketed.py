"""Words and brackets of a sentence, from a tree or from a line as EVALB reads it."""

import dataclasses
import re

from keras_transformer.parsing.trees import Tree, escape_brackets

_SPACE = r" \t\r\n\f\v"
_TEXT = rf"([^{_SPACE}()]*+)"
# A leaf, "(NN dog)"; a bracket that opens, with its label; one that closes; a word elsewhere.
_TOKENS = re.compile(rf"\({_TEXT}[{_SPACE}]++{_TEXT}[{_SPACE}]*+\)|\({_TEXT}|(\))|[^{_SPACE}()]++")


@dataclasses.dataclass(frozen=True)
class Bracketed:
    """Words and brackets of a sentence.

    Attributes:
        leaves: tag and word of every leaf; round brackets in words are `-LRB-` and `-RRB-`.
        brackets: label, first leaf and end (the leaf after the last) of every constituent, in the
            order they open; the end is None if the bracket never closes.
        error: EVALB's message if the text is not well-formed, else None.
    """

    leaves: list[tuple[str, str]]
    brackets: list[list]
    error: str | None = None

    @classmethod
    def of(cls, source: Tree | str | None) -> "Bracketed":
        """Reads a tree, or a line of text by the rules of EVALB.

        A line may hold several trees or none. A root without a label is TOP.

        Args:
            source: `Tree`, line of text, or None for no words.

        Returns:
            `Bracketed`.
        """
        if isinstance(source, str):
            return cls(*_read_line(source))
        leaves, brackets, opened = [], [], []
        for part in () if source is None else source.walk():
            if part is None:
                brackets[opened.pop()][2] = len(leaves)
            elif part.is_leaf:
                leaves.append((part.label, escape_brackets(part.word)))
            else:
                _open(part.label, leaves, brackets, opened)
        return cls(leaves, brackets)


def _open(label, leaves, brackets, opened):
    opened.append(len(brackets))
    is_root = len(opened) == 1
    brackets.append([label or ("TOP" if is_root else ""), len(leaves), None])


def _read_line(text: str):
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
    return leaves, brackets, error
