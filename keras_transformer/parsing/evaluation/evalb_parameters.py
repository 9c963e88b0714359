"""`EvalbParameters`: the parameters in EVALB's files `COLLINS.prm` and `new.prm`, and others."""

import dataclasses
import os
from typing import Any

from keras_transformer.data.lines import open_text
from keras_transformer.errors import UserError
from keras_transformer.parsing.treebank import EMPTY_TAG

_COLLINS_DELETED = ("TOP", EMPTY_TAG, ",", ":", "``", "''", ".")
# Keyword: the field it sets, its number of values, and whether each line adds to the field.
_KEYWORDS: dict[str, tuple[str, int, bool]] = {
    "DELETE_LABEL": ("delete_labels", 1, True),
    "DELETE_LABEL_FOR_LENGTH": ("delete_labels_for_length", 1, True),
    "EQ_LABEL": ("equal_labels", 2, True),
    "EQ_WORD": ("equal_words", 2, True),
    "QUOTE_LABEL": ("quote_labels", 1, True),
    "CUTOFF_LEN": ("cutoff_length", 1, False),
    "MAX_ERROR": ("max_errors", 1, False),
    "LABELED": ("labelled", 1, False),
    "DEBUG": ("", 1, False),
}


@dataclasses.dataclass(frozen=True)
class EvalbParameters:
    """Parameters of EVALB; the defaults are those of `COLLINS.prm`.

    Args:
        delete_labels: words with one of these tags are deleted, and brackets with these labels.
        delete_labels_for_length: words with one of these tags do not count for the length.
        equal_labels: pairs of labels that count as equal.
        quote_labels: tags of quotation marks (`'`, `"` or `/`). If the trees differ in their number
            of words, a mark that only one tree deletes is kept in both if both tags are in here.
        cutoff_length: maximum length of a sentence in the second summary.
        labelled: whether labels must be equal; if False, only spans.
        equal_words: pairs of words that count as equal.
        max_errors: EVALB's `MAX_ERROR`: `parseval` raises an error for more than `max_errors + 1`
            errors, where EVALB stops; None for no limit.

    Example:

    >>> from keras_transformer.parsing import EvalbParameters
    >>> EvalbParameters().delete_labels
    ('TOP', '-NONE-', ',', ':', '``', "''", '.')
    >>> str(EvalbParameters.new())
    'new.prm'
    """

    delete_labels: tuple[str, ...] = _COLLINS_DELETED
    delete_labels_for_length: tuple[str, ...] = (EMPTY_TAG,)
    equal_labels: tuple[tuple[str, str], ...] = (("ADVP", "PRT"),)
    quote_labels: tuple[str, ...] = ()
    cutoff_length: int = 40
    labelled: bool = True
    equal_words: tuple[tuple[str, str], ...] = ()
    max_errors: int | None = None

    @classmethod
    def new(cls) -> "EvalbParameters":
        """Returns the parameters of `new.prm`, which also reconciles quotation marks."""
        return cls(
            delete_labels=("TOP", "S1", *_COLLINS_DELETED[1:], "?", "!"),
            quote_labels=("``", "''", "POS", "NN", "CD", "VBZ", ":"),
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "EvalbParameters":
        """Returns the parameters in a file of EVALB.

        The defaults are EVALB's: no label is deleted and no labels are equal, `MAX_ERROR` is 10,
        `CUTOFF_LEN` 40, `LABELED` 1. `DEBUG` has no effect.

        Args:
            path: the file. Lines that begin with `#` are comments.

        Raises:
            UserError: if the file is missing or not UTF-8, or a line has an unknown keyword or
                wrong values, where EVALB prints a warning and ignores the line.
        """
        values: dict[str, Any] = {name: () for name, _, adds in _KEYWORDS.values() if adds}
        values["max_errors"] = 10
        for number, line in enumerate(open_text(path), start=1):
            line = line.rstrip()
            if line.startswith("#") or len(line) < 3:
                continue
            keyword, *words = line.split()
            where = f"{str(path)!r}, line {number}"
            if keyword not in _KEYWORDS:
                rule = f"{where}: unknown keyword. Allowed: {', '.join(_KEYWORDS)}"
                raise UserError(f"{rule}. Received: {keyword!r}")
            name, count, adds = _KEYWORDS[keyword]
            if len(words) != count or not (adds or words[0].removeprefix("-").isdecimal()):
                kind = ("a label", "two values")[count - 1] if adds else "a whole number"
                raise UserError(f"{where}: {keyword} takes {kind}. Received: {line!r}")
            if adds:
                values[name] += (words[0] if count == 1 else tuple(words),)
            elif name:
                values[name] = int(words[0]) != 0 if name == "labelled" else int(words[0])
        return cls(**values)

    def __str__(self) -> str:
        limits: dict[str, Any] = {
            "cutoff_length": self.cutoff_length,
            "max_errors": self.max_errors,
        }
        known = {"COLLINS.prm": EvalbParameters(), "new.prm": EvalbParameters.new()}
        names = (name for name, one in known.items() if self == dataclasses.replace(one, **limits))
        return next(names, "own parameters")
