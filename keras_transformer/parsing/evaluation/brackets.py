"""The brackets of one sentence, compared as EVALB does: what counts, what matches, what crosses."""

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable

from keras_transformer.parsing.evaluation.bracketed import Bracketed
from keras_transformer.parsing.evaluation.evalb_parameters import EvalbParameters
from keras_transformer.parsing.linearization import PLACEHOLDER
from keras_transformer.parsing.treebank import EMPTY_TAG
from keras_transformer.parsing.trees import Tree

VALID, ERROR, SKIP = 0, 1, 2
# Words that taggers take either for a quotation mark or for something else.
_QUOTES = ("'", '"', "/")
_FUNCTION_TAGS = re.compile("[-=].*")


@dataclasses.dataclass(frozen=True)
class SentenceScore:
    """One line of EVALB's table.

    Attributes:
        number: which sentence it is, from 1.
        length: words of the gold tree, those without a tag for deletion by length.
        status: 0 valid; 1 error, the words of the trees differ or a line is broken; 2 skip, the
            parse has no words.
        gold_brackets, test_brackets: how many brackets of either tree count; of a sentence that is
            not valid too, where EVALB prints 0.
        matched: how many of the parse's brackets are right.
        crossing: how many of the parse's brackets overlap one of the gold tree.
        words: how many words are not deleted.
        correct_tags: how many of them have the right tag.
        uses_gold_tags: whether the parse lacks tags, so that those of the gold tree say which words
            are deleted.
        errors: EVALB's messages of what is wrong.

    Example:

    >>> from keras_transformer.parsing import Tree
    >>> from keras_transformer.parsing import parseval
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


def score_sentence(
    number: int, gold: Tree | str | None, parse: Tree | str | None, parameters: EvalbParameters
) -> SentenceScore:
    """Compares a parse with the gold tree of its sentence.

    Args:
        number: which sentence it is.
        gold, parse: the trees, or lines as EVALB reads them; None is a tree without words.
        parameters: what is deleted and what is the same.

    Returns:
        `SentenceScore`.
    """
    gold, parse = Bracketed.of(gold), Bracketed.of(parse)
    gold_tags = [tag for tag, _ in gold.leaves]
    # The tags that say which words are deleted.
    test_tags, uses_gold_tags = _fill_tags(parse.leaves, gold.leaves)
    # How often each leaf counts.
    gold_counts = [int(tag not in parameters.delete_labels) for tag in gold_tags]
    test_counts = [int(tag not in parameters.delete_labels) for tag in test_tags]
    num_gold, num_test = sum(gold_counts), sum(test_counts)
    if num_test and num_gold != num_test:
        gold_quotes = _quotes(gold, gold_tags, gold_counts, parameters)
        test_quotes = _quotes(parse, test_tags, test_counts, parameters)
        _reconcile_quotes(gold_quotes, test_quotes, gold_counts, test_counts, parameters)
    gold_leaves, test_leaves = _repeat(gold.leaves, gold_counts), _repeat(parse.leaves, test_counts)
    gold_brackets = _brackets(gold, gold_counts, num_gold, parameters)
    test_brackets = _brackets(parse, test_counts, num_test, parameters)
    errors = [source.error for source in (gold, parse) if source.error]
    mismatch = _mismatch(gold_leaves, test_leaves, parameters) if test_leaves else None
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
            parameters.are_equal(tag, other)
            for (tag, _), (other, _) in zip(gold_leaves, test_leaves, strict=True)
        ),
    )


def percent(part: float, whole: float) -> float:
    """Returns 100 * part / whole, and 0 if there is nothing."""
    return 100.0 * part / whole if whole else 0.0


def _fill_tags(test_leaves, gold_leaves):
    """Returns the parse's tags, those it lacks from the gold tree, and whether it lacked any."""
    tags = [tag for tag, _ in test_leaves]
    gold_tags = [tag for tag, _ in gold_leaves]
    if PLACEHOLDER not in tags or tags == gold_tags:
        return tags, False
    present = [tag for tag in gold_tags if tag != EMPTY_TAG]
    positions = [position for position, tag in enumerate(tags) if tag != EMPTY_TAG]
    if len(present) == len(positions):  # If not, the words differ whatever the tags are.
        for position, gold_tag in zip(positions, present, strict=True):
            if tags[position] == PLACEHOLDER:
                tags[position] = gold_tag
    return tags, True


def _quotes(source, tags, counts, parameters):
    """Returns leaf, place among the words that count, and tag of every quotation mark."""
    places = [0, *itertools.accumulate(counts)]
    return [
        [leaf, places[leaf], tag]
        for leaf, (tag, (_, word)) in enumerate(zip(tags, source.leaves, strict=True))
        if word in _QUOTES and tag in parameters.quote_labels
    ]


def _reconcile_quotes(gold_quotes, test_quotes, gold_counts, test_counts, parameters):
    """Restores quotation marks at places where only one tree deletes one, as `fix_quote` does."""
    for i, (test_leaf, place, test_tag) in enumerate(test_quotes):
        for j, (gold_leaf, gold_place, gold_tag) in enumerate(gold_quotes):
            deleted = [tag in parameters.delete_labels for tag in (gold_tag, test_tag)]
            if gold_place != place or deleted[0] == deleted[1]:
                continue
            counts, leaf = (gold_counts, gold_leaf) if deleted[0] else (test_counts, test_leaf)
            counts[leaf] += 1
            for quote in gold_quotes[j:] if deleted[0] else test_quotes[i:]:
                quote[1] += 1


def _repeat(leaves, counts):
    return [leaf for leaf, count in zip(leaves, counts, strict=True) for _ in range(count)]


def _mismatch(gold_leaves, test_leaves, parameters):
    """Returns EVALB's message if the words differ, else None."""
    if len(gold_leaves) != len(test_leaves):
        return f"Length unmatch ({len(gold_leaves)}|{len(test_leaves)})"
    for (_, word), (_, other) in zip(gold_leaves, test_leaves, strict=True):
        if not parameters.are_equal_words(word, other):
            return f"Words unmatch ({word}|{other})"
    return None


def _brackets(source: Bracketed, counts, num_kept, parameters) -> list[tuple[str, int, int]]:
    """Returns label, start and end of every bracket that counts, in the order they open."""
    places = [0, *itertools.accumulate(counts)]
    # EVALB ends a bracket that never closes at -1, which each restored quotation mark moves.
    places.append(places[-1] - num_kept - 1)
    brackets = [
        (_FUNCTION_TAGS.sub("", label), places[start], places[-1 if end is None else end])
        for label, start, end in source.brackets
    ]
    return [
        (label, start, end)
        for label, start, end in brackets
        if start != end and not parameters.deletes(label)
    ]


def _count_matched(gold: Iterable[tuple], test: Iterable[tuple], parameters) -> int:
    """Each bracket matches once, with the first one of the same span that is still free."""
    free = defaultdict(list)
    for label, start, end in test:
        free[start, end].append(label)
    matched = 0
    for label, start, end in gold:
        candidates = free.get((start, end), [])
        for position, other in enumerate(candidates):
            if not parameters.labelled or parameters.are_equal(label, other):
                del candidates[position]
                matched += 1
                break
    return matched


def _count_crossing(gold: Iterable[tuple], test: Iterable[tuple]) -> int:
    """How many brackets of the parse overlap a gold bracket without either holding the other."""
    spans = {(start, end) for _, start, end in gold}
    return sum(
        any(
            other_start < start < other_end < end or start < other_start < end < other_end
            for other_start, other_end in spans
        )
        # A span of the gold tree crosses no other one of it.
        for start, end in ((start, end) for _, start, end in test)
        if (start, end) not in spans
    )
