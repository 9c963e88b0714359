"""The brackets of one sentence, read and compared as EVALB does."""

import dataclasses
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_transformer.data.lines import open_text
from keras_transformer.errors import UserError
from keras_transformer.parsing.treebank import EMPTY_TAG
from keras_transformer.parsing.trees import PLACEHOLDER, Tree, escape_brackets

VALID, ERROR, SKIP = 0, 1, 2
_QUOTES = ("'", '"', "/")  # words to which taggers may give the tag of a quotation mark or another
_FUNCTION_TAGS = re.compile("[-=].*")
_SPACE = r" \t\r\n\f\v"
_TEXT = rf"([^{_SPACE}()]*+)"
# A leaf, "(NN dog)"; a bracket that opens, with its label; one that closes; a word elsewhere.
_TOKENS = re.compile(rf"\({_TEXT}[{_SPACE}]++{_TEXT}[{_SPACE}]*+\)|\({_TEXT}|(\))|[^{_SPACE}()]++")


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


@dataclasses.dataclass(frozen=True)
class SentenceScore:
    """One line of EVALB's table.

    Attributes:
        number: number of the sentence, from 1.
        length: number of words of the gold tree, without tags in `delete_labels_for_length`.
        status: 0 valid; 1 error, other words or a broken line; 2 skipped, a parse without words.
        gold_brackets, test_brackets: number of brackets of each tree; EVALB prints 0 if not valid.
        matched: number of brackets of the parse that are right.
        crossing: number of brackets of the parse that overlap a bracket of the gold tree.
        words, correct_tags: number of words that are not deleted, and how many have the right tag.
        uses_gold_tags: whether the tags of the gold tree delete words, because the parse has none.
        errors: EVALB's error messages.

    Example:

    >>> from keras_transformer.parsing import Tree, parseval
    >>> gold = Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))")
    >>> parse = Tree.parse("(S (NP (PRP It)) (VBZ works))")
    >>> [sentence] = parseval([gold], [parse]).sentences
    >>> sentence.matched, round(sentence.recall, 2), sentence.precision
    (2, 66.67, 100.0)
    """

    number: int
    length: int
    status: int
    gold_brackets: int
    test_brackets: int
    matched: int = 0
    crossing: int = 0
    words: int = 0
    correct_tags: int = 0
    uses_gold_tags: bool = False
    errors: tuple[str, ...] = ()

    @property
    def recall(self) -> float:
        """Share of the gold tree's brackets that the parse has, in percent."""
        return percent(self.matched, self.gold_brackets)

    @property
    def precision(self) -> float:
        """Share of the parse's brackets that the gold tree has, in percent."""
        return percent(self.matched, self.test_brackets)

    @property
    def is_complete(self) -> bool:
        """Whether the sentence is valid and every bracket is right."""
        return self.status == VALID and self.matched == self.gold_brackets == self.test_brackets

    def __str__(self) -> str:
        # EVALB shows the brackets wherever it compared them, also those of a broken line.
        gold, test = (self.gold_brackets, self.test_brackets) if self.words else (0, 0)
        return (
            f"{self.number:4d}  {self.length:3d}    {self.status}  "
            f"{self.recall:6.2f} {self.precision:6.2f}   {self.matched:3d}    {gold:3d}  {test:3d}"
            f"    {self.crossing:3d}  {self.words:5d} {self.correct_tags:5d}   "
            f"{percent(self.correct_tags, self.words):6.2f}"
        )


def percent(part: float, whole: float) -> float:
    """Returns 100 * part / whole, or 0 if `whole` is 0."""
    return 100.0 * part / whole if whole else 0.0


class Bracketed(NamedTuple):
    """Words and brackets of a sentence."""

    leaves: list[tuple[str, str]]  # tag and word of each; with `-LRB-` and `-RRB-`
    # [label, first leaf, leaf after the last or None if it never closes], in the order of opening.
    brackets: list[list]
    error: str | None  # EVALB's message if the text is not well-formed

    @classmethod
    def of(cls, source: Tree | str | None) -> "Bracketed":
        """Reads a tree, a line of text by the rules of EVALB, or None; an unnamed root is TOP."""
        leaves: list[tuple[str, str]] = []
        opened: list[tuple[str, int]] = []
        ends: dict[int, int] = {}
        label = error = None
        # EVALB's stack of open brackets has no lower end: a closing bracket may come before its
        # opening one. An error is the second such bracket, or unequal numbers at the end.
        stack, top = {}, 0
        for tag, word, label, closing in _read(source):
            if tag is not None:
                leaves.append((tag, word))
            elif label is not None:
                stack[top], top = len(opened), top + 1
                opened.append((label or "TOP" * (top == 1), len(leaves)))
            elif not closing:
                # EVALB never gets past such a word; here it is left out.
                error = "More than two elements in a bracket"
            else:
                if top < 0:
                    error = error or "Bracketing is unbalanced (too many close bracket)"
                top -= 1
                ends[stack.get(top, 0)] = len(leaves)  # The memory below the stack is 0.
        if label is not None:  # The last token of the line is a bracket that opens.
            error = error or "More than two elements in a bracket"
        if top:
            more = "open" if top > 0 else "close"
            error = error or f"Bracketing is unbalanced (too many {more} bracket)"
        brackets = [[*bracket, ends.get(number)] for number, bracket in enumerate(opened)]
        return cls(leaves, brackets, error)


def _read(source: Tree | str | None) -> Iterator[tuple]:
    """Yields (tag, word, label, `)`): a leaf has the first two, a bracket one of the others."""
    if isinstance(source, str):
        yield from (token.groups() for token in _TOKENS.finditer(source))
    elif source is not None:
        for part in source.walk():
            if part is None:
                yield None, None, None, ")"
            elif part.word is not None:
                yield part.label, escape_brackets(part.word), None, None
            else:
                yield None, None, part.label, None


def score_sentence(
    number: int, gold: Tree | str | None, parse: Tree | str | None, parameters: EvalbParameters
) -> SentenceScore:
    """Compares a parse with the gold tree of its sentence; both as in `Bracketed.of`."""
    sources = Bracketed.of(gold), Bracketed.of(parse)
    gold_tags, test_tags = [[tag for tag, _ in source.leaves] for source in sources]
    uses_gold_tags = _fill_tags(test_tags, gold_tags)
    gold = _Counted(sources[0], gold_tags, parameters)
    parse = _Counted(sources[1], test_tags, parameters)
    if parse.num_kept and gold.num_kept != parse.num_kept:
        _reconcile_quotes(gold, parse)
    gold_leaves, test_leaves = gold.leaves(), parse.leaves()
    gold_brackets, test_brackets = gold.brackets(), parse.brackets()
    errors = [source.error for source in sources if source.error]
    mismatch = _mismatch(gold_leaves, test_leaves, parameters.equal_words) if test_leaves else None
    errors += [mismatch] if mismatch else []
    result = SentenceScore(
        number=number,
        length=sum(tag not in parameters.delete_labels_for_length for tag in gold_tags),
        status=SKIP if not test_leaves else ERROR if errors else VALID,
        gold_brackets=len(gold_brackets),
        test_brackets=len(test_brackets),
        uses_gold_tags=uses_gold_tags,
        errors=tuple(errors),
    )
    if mismatch or not test_leaves:
        return result
    return dataclasses.replace(
        result,
        matched=_count_matched(gold_brackets, test_brackets, parameters),
        crossing=_count_crossing(gold_brackets, test_brackets),
        words=len(gold_leaves),
        correct_tags=sum(
            _are_equal(tag, other, parameters.equal_labels)
            for (tag, _), (other, _) in zip(gold_leaves, test_leaves, strict=True)
        ),
    )


def _are_equal(text: str, other: str, pairs: tuple[tuple[str, str], ...]) -> bool:
    return text == other or (text, other) in pairs or (other, text) in pairs


class _Counted:
    """A sentence with `counts`: 0 for each leaf that is deleted by its tag, 1 for others."""

    def __init__(self, source: Bracketed, tags: list[str], parameters: EvalbParameters) -> None:
        self._source, self._tags, self._parameters = source, tags, parameters
        self.counts = [int(not self.is_deleted(tag)) for tag in tags]
        self.num_kept = sum(self.counts)

    def is_deleted(self, tag: str) -> bool:
        return tag in self._parameters.delete_labels

    def quotes(self) -> list[list]:
        """Returns leaf, place among the words that count, and tag of each quotation mark."""
        places = [0, *itertools.accumulate(self.counts)]
        return [
            [leaf, places[leaf], tag]
            for leaf, tag in enumerate(self._tags)
            if tag in self._parameters.quote_labels and self._source.leaves[leaf][1] in _QUOTES
        ]

    def leaves(self) -> list[tuple[str, str]]:
        """Returns each leaf as often as it counts."""
        pairs = zip(self._source.leaves, self.counts, strict=True)
        return [leaf for leaf, count in pairs for _ in range(count)]

    def brackets(self) -> list[tuple[str, int, int]]:
        """Returns label, start and end of each bracket that counts, in the order of opening."""
        places = [0, *itertools.accumulate(self.counts)]
        # EVALB ends a bracket that never closes at -1, which each restored quotation mark moves.
        places.append(places[-1] - self.num_kept - 1)
        brackets = [
            (_FUNCTION_TAGS.sub("", label), places[start], places[-1 if end is None else end])
            for label, start, end in self._source.brackets
        ]
        deleted, pairs = self._parameters.delete_labels, self._parameters.equal_labels
        return [
            (label, start, end)
            for label, start, end in brackets
            if start != end and not any(_are_equal(label, other, pairs) for other in deleted)
        ]


def _fill_tags(tags: list[str], gold_tags: list[str]) -> bool:
    """Takes a parse's missing tags from the gold tree; returns whether any was missing."""
    if PLACEHOLDER not in tags or tags == gold_tags:
        return False
    present = [tag for tag in gold_tags if tag != EMPTY_TAG]
    positions = [position for position, tag in enumerate(tags) if tag != EMPTY_TAG]
    if len(present) == len(positions):  # Otherwise the words differ whatever the tags are.
        for position, gold_tag in zip(positions, present, strict=True):
            if tags[position] == PLACEHOLDER:
                tags[position] = gold_tag
    return True


def _reconcile_quotes(gold: _Counted, parse: _Counted) -> None:
    """Restores quotation marks where only one tree deletes one, as `fix_quote` in EVALB does."""
    gold_quotes, test_quotes = gold.quotes(), parse.quotes()
    for i, (test_leaf, place, test_tag) in enumerate(test_quotes):
        for j, (gold_leaf, gold_place, gold_tag) in enumerate(gold_quotes):
            is_in_gold, is_in_parse = not gold.is_deleted(gold_tag), not parse.is_deleted(test_tag)
            if gold_place != place or is_in_gold == is_in_parse:
                continue
            side, leaf = (parse, test_leaf) if is_in_gold else (gold, gold_leaf)
            side.counts[leaf] += 1
            for quote in test_quotes[i:] if is_in_gold else gold_quotes[j:]:
                quote[1] += 1


def _mismatch(gold_leaves: list, test_leaves: list, pairs: tuple) -> str | None:
    """Returns EVALB's message if the words differ, else None."""
    if len(gold_leaves) != len(test_leaves):
        return f"Length unmatch ({len(gold_leaves)}|{len(test_leaves)})"
    for (_, word), (_, other) in zip(gold_leaves, test_leaves, strict=True):
        if not _are_equal(word, other, pairs):
            return f"Words unmatch ({word}|{other})"
    return None


def _count_matched(gold: list[tuple], test: list[tuple], parameters: EvalbParameters) -> int:
    """Returns the number of gold brackets that match a test bracket, each of which matches once."""
    free = defaultdict(list)
    for label, start, end in test:
        free[start, end].append(label)
    matched = 0
    for label, start, end in gold:
        for other in free[start, end]:
            if not parameters.labelled or _are_equal(label, other, parameters.equal_labels):
                free[start, end].remove(other)
                matched += 1
                break
    return matched


def _count_crossing(gold: list[tuple], test: list[tuple]) -> int:
    """Returns the number of test brackets that overlap a gold bracket, neither inside the other."""
    spans = {(start, end) for _, start, end in gold}
    return sum(
        any(
            other_start < start < other_end < end or start < other_start < end < other_end
            for other_start, other_end in spans
        )
        # A span that the gold tree has too crosses none of its spans.
        for _, start, end in test
        if (start, end) not in spans
    )
