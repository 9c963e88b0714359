"""EVALB's parameters, and how it reads and compares the brackets of one sentence."""

import dataclasses
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from keras_transformer.data.corpora import open_text
from keras_transformer.errors import UserError
from keras_transformer.parsing.trees import EMPTY_TAG, PLACEHOLDER, SPACE, Tree, escape_brackets

VALID, ERROR, SKIP = 0, 1, 2
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
# Taggers may give these words the tag of a quotation mark or another.
_QUOTES = ("'", '"', "/")
_FUNCTION_TAGS = re.compile("[-=].*")
_TEXT = rf"([^{SPACE}()]*+)"
# A leaf, "(NN dog)"; a bracket that opens, with its label; one that closes; a word elsewhere.
_TOKENS = re.compile(rf"\({_TEXT}[{SPACE}]++{_TEXT}[{SPACE}]*+\)|\({_TEXT}|(\))|[^{SPACE}()]++")


@dataclasses.dataclass(frozen=True)
class EvalbParameters:
    """Parameters of EVALB; the defaults are those of `COLLINS.prm`.

    Args:
        delete_labels: Words with one of these tags are deleted, and brackets with these labels.
        delete_labels_for_length: Words with one of these tags do not count for the length.
        equal_labels: Pairs of labels that count as equal.
        quote_labels: Tags of quotation marks (`'`, `"` or `/`). If the trees differ in their number
            of words, a mark that only one tree deletes is kept in both if both tags are in here.
        cutoff_length: Maximum length of a sentence in the second summary.
        labelled: Whether labels must be equal; if False, only spans.
        equal_words: Pairs of words that count as equal.
        max_errors: EVALB's `MAX_ERROR`: `parseval` raises an error for more than `max_errors + 1`
            errors, where EVALB stops; None for no limit.

    Example:

    >>> from keras_transformer.parsing import EvalbParameters
    >>> EvalbParameters().delete_labels, str(EvalbParameters.new())
    (('TOP', '-NONE-', ',', ':', '``', "''", '.'), 'new.prm')
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

        Args:
            path: The file. Lines that begin with `#` are comments. The defaults are EVALB's: no
                label is deleted, no labels are equal, and `MAX_ERROR` is 10.

        Raises:
            UserError: If the file is missing or not UTF-8, or a line has an unknown keyword or
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
        rules = dataclasses.replace(self, cutoff_length=40, max_errors=None)
        known = (("COLLINS.prm", EvalbParameters()), ("new.prm", EvalbParameters.new()))
        return next((name for name, value in known if value == rules), "own parameters")


@dataclasses.dataclass(frozen=True)
class SentenceScore:
    """One line of EVALB's table.

    Attributes:
        number: Number of the sentence, from 1.
        length: Number of words of the gold tree, without tags in `delete_labels_for_length`.
        status: 0 valid; 1 error, other words or a broken line; 2 skipped, a parse without words.
        gold_brackets, test_brackets: Number of brackets of each tree; EVALB prints 0 if not valid.
        matched: Number of brackets of the parse that are right.
        crossing: Number of brackets of the parse that overlap a bracket of the gold tree.
        words, correct_tags: Number of words that are not deleted, and how many have the right tag.
        uses_gold_tags: Whether the tags of the gold tree delete words, because the parse has none.
        errors: EVALB's error messages.

    Example:

    >>> from keras_transformer.parsing import Tree, parseval
    >>> gold = Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))")
    >>> [sentence] = parseval([gold], [Tree.parse("(S (NP (PRP It)) (VBZ works))")]).sentences
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


def percent(count: float, total: float) -> float:
    """Returns 100 * count / total, or 0 if `total` is 0."""
    return 100.0 * count / total if total else 0.0


def score_sentence(
    number: int, gold: Tree | str | None, parse: Tree | str | None, parameters: EvalbParameters
) -> SentenceScore:
    """Compares a parse with the gold tree of its sentence: trees, lines of text or None."""
    gold, parse = _Sentence(gold), _Sentence(parse)
    uses_gold_tags = _fill_tags(parse.tags, gold.tags)
    for side in (gold, parse):
        side.counts = [int(tag not in parameters.delete_labels) for tag in side.tags]
    gold_count, test_count = sum(gold.counts), sum(parse.counts)
    if test_count and gold_count != test_count:
        _reconcile_quotes(gold, parse, parameters)
    gold_leaves, test_leaves = gold.counted_leaves(), parse.counted_leaves()
    gold_brackets = gold.counted_brackets(gold_count, parameters)
    test_brackets = parse.counted_brackets(test_count, parameters)
    errors = [side.error for side in (gold, parse) if side.error]
    mismatch = _mismatch(gold_leaves, test_leaves, parameters.equal_words) if test_leaves else None
    errors += [mismatch] if mismatch else []
    compared: dict[str, int] = {}
    if test_leaves and not mismatch:
        compared = {
            "matched": _count_matched(gold_brackets, test_brackets, parameters),
            "crossing": _count_crossing(gold_brackets, test_brackets),
            "words": len(gold_leaves),
            "correct_tags": sum(
                _are_equal(tag, other, parameters.equal_labels)
                for (tag, _), (other, _) in zip(gold_leaves, test_leaves, strict=True)
            ),
        }
    return SentenceScore(
        number=number,
        length=sum(tag not in parameters.delete_labels_for_length for tag in gold.tags),
        status=SKIP if not test_leaves else ERROR if errors else VALID,
        gold_brackets=len(gold_brackets),
        test_brackets=len(test_brackets),
        uses_gold_tags=uses_gold_tags,
        errors=tuple(errors),
        **compared,
    )


class _Sentence:
    """Words and brackets of a tree, or of a line of text as EVALB reads it, or of None."""

    def __init__(self, source: Tree | str | None) -> None:
        self.leaves: list[tuple[str, str]] = []  # tag and word of each, with `-LRB-` and `-RRB-`
        self.error: str | None = None  # EVALB's message if the text is not well-formed
        opened: list[tuple[str, int]] = []
        ends: dict[int, int] = {}
        # EVALB's stack of open brackets has no lower end: a closing bracket may come before its
        # opening one. An error is the second such bracket, or unequal numbers at the end.
        stack, top, label = {}, 0, None
        for tag, word, label, closing in _read(source):
            if tag is not None:
                self.leaves.append((tag, word))
            elif label is not None:
                stack[top], top = len(opened), top + 1
                name = label or ("TOP" if top == 1 else "")  # The root may have no label.
                opened.append((name, len(self.leaves)))
            elif not closing:
                # EVALB never gets past such a word; here it is left out.
                self.error = "More than two elements in a bracket"
            else:
                if top < 0:
                    self.error = self.error or "Bracketing is unbalanced (too many close bracket)"
                top -= 1
                ends[stack.get(top, 0)] = len(self.leaves)  # The memory below the stack is 0.
        if label is not None:  # The last token of the line is a bracket that opens.
            self.error = self.error or "More than two elements in a bracket"
        if top:
            more = "open" if top > 0 else "close"
            self.error = self.error or f"Bracketing is unbalanced (too many {more} bracket)"
        # Label, first leaf, and leaf after the last or None, in the order of opening.
        self.brackets = [(*bracket, ends.get(number)) for number, bracket in enumerate(opened)]
        self.tags = [tag for tag, _ in self.leaves]  # They decide which leaves are deleted.
        self.counts: list[int] = []  # how often each leaf counts: 0 for one that is deleted

    def quotes(self, parameters):
        """Returns leaf, position among the counted words, and count of each quotation mark."""
        positions = [0, *itertools.accumulate(self.counts)]
        return [
            [leaf, positions[leaf], self.counts[leaf]]
            for leaf, (tag, (_, word)) in enumerate(zip(self.tags, self.leaves, strict=True))
            if tag in parameters.quote_labels and word in _QUOTES
        ]

    def counted_leaves(self):
        pairs = zip(self.leaves, self.counts, strict=True)
        return [leaf for leaf, count in pairs for _ in range(count)]

    def counted_brackets(self, count_before, parameters):
        """Returns label, start and end of each bracket that counts, in the order of opening."""
        positions = [0, *itertools.accumulate(self.counts)]
        # EVALB ends a bracket that never closes at -1, which each restored quotation mark moves.
        positions.append(positions[-1] - count_before - 1)
        deleted, pairs = parameters.delete_labels, parameters.equal_labels
        counted = []
        for label, first, after_last in self.brackets:
            label = _FUNCTION_TAGS.sub("", label)
            start, end = positions[first], positions[-1 if after_last is None else after_last]
            if start != end and not any(_are_equal(label, other, pairs) for other in deleted):
                counted.append((label, start, end))
        return counted


def _read(source: Tree | str | None) -> Iterator[tuple]:
    """Yields (tag, word, label, `)`): a leaf has the first two, a bracket one of the others."""
    if isinstance(source, str):
        yield from (token.groups() for token in _TOKENS.finditer(source))
    elif source is not None:
        for tree in source.walk():
            if tree is None:
                yield None, None, None, ")"
            elif tree.word is not None:
                yield tree.label, escape_brackets(tree.word), None, None
            else:
                yield None, None, tree.label, None


def _are_equal(text: str, other: str, pairs: tuple[tuple[str, str], ...]) -> bool:
    return text == other or (text, other) in pairs or (other, text) in pairs


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


def _reconcile_quotes(gold: _Sentence, parse: _Sentence, parameters: EvalbParameters) -> None:
    """Restores quotation marks where only one tree deletes one, as `fix_quote` in EVALB does."""
    gold_quotes, test_quotes = gold.quotes(parameters), parse.quotes(parameters)
    for i, (test_leaf, position, in_parse) in enumerate(test_quotes):
        for j, (gold_leaf, gold_position, in_gold) in enumerate(gold_quotes):
            if gold_position != position or in_gold == in_parse:
                continue
            side, leaf = (parse, test_leaf) if in_gold else (gold, gold_leaf)
            side.counts[leaf] += 1
            for quote in test_quotes[i:] if in_gold else gold_quotes[j:]:
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
        any(first < start < last < end or start < first < end < last for first, last in spans)
        for _, start, end in test
        if (start, end) not in spans  # A span of the gold tree crosses none of its spans.
    )
