"""The brackets of one sentence, compared as EVALB does: what counts, what matches, what crosses."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from keras_transformer.data.tree_linearization import PLACEHOLDER
from keras_transformer.data.treebank import EMPTY_TAG, strip_function_tags
from keras_transformer.data.trees import Tree

VALID, ERROR, SKIP = 0, 1, 2
_COLLINS_DELETED = ("TOP", EMPTY_TAG, ",", ":", "``", "''", ".")
# The words that taggers take now for a quotation mark, now for something else.
_QUOTES = ("'", "''", "`", "``", '"')


@dataclasses.dataclass(frozen=True)
class EvalbParameters:
    """What EVALB reads from a parameter file; the defaults are those of `COLLINS.prm`.

    Args:
        delete_labels: a word with one of these tags is deleted, a constituent with one of these
            labels loses its bracket.
        delete_labels_for_length: words with one of these tags do not count for the length.
        equal_labels: pairs of labels that are taken for the same.
        quote_labels: a quotation mark that only one of two trees deletes is kept in both, if its
            tags are among these.
        cutoff_length: the longest sentence of the second summary.
        labelled: whether labels must be equal; if False, only spans.

    Example:

    >>> from keras_transformer.evaluation import EvalbParameters
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

    @classmethod
    def new(cls) -> "EvalbParameters":
        """Returns what `new.prm` says: S1, `?`, `!` are deleted, quotation marks reconciled."""
        return cls(
            delete_labels=("TOP", "S1", *_COLLINS_DELETED[1:], "?", "!"),
            quote_labels=("``", "''", "POS", "NN", "CD", "VBZ", ":"),
        )

    def __str__(self) -> str:
        for name, known in (("COLLINS.prm", EvalbParameters()), ("new.prm", EvalbParameters.new())):
            if self == dataclasses.replace(known, cutoff_length=self.cutoff_length):
                return name
        return "own parameters"

    def are_equal(self, label: str, other: str) -> bool:
        """Returns whether two labels, or two tags, are taken for the same.

        Args:
            label, other: what is compared; their order does not matter.

        Returns:
            `bool`.
        """
        pairs = self.equal_labels
        return label == other or (label, other) in pairs or (other, label) in pairs


@dataclasses.dataclass(frozen=True)
class SentenceScore:
    """One line of EVALB's table.

    Attributes:
        number: which sentence it is, from 1.
        length: words of the gold tree, those without a tag for deletion by length.
        status: 0 valid; 1 error, the words of the trees differ; 2 skip, the parse has no words.
        gold_brackets, test_brackets: how many brackets of either tree count; of a sentence that is
            not valid too, where EVALB prints 0.
        matched: how many of the parse's brackets are right.
        crossing: how many of the parse's brackets overlap one of the gold tree.
        words: how many words are not deleted.
        correct_tags: how many of them have the right tag.
        uses_gold_tags: whether the parse lacks tags, so that those of the gold tree say which words
            are deleted.

    Example:

    >>> from keras_transformer.data import Tree
    >>> from keras_transformer.evaluation import parseval
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
        gold, test = (self.gold_brackets, self.test_brackets) if self.status == VALID else (0, 0)
        return (
            f"{self.number:4d}  {self.length:3d}    {self.status}  "
            f"{self.recall:6.2f} {self.precision:6.2f}   {self.matched:3d}    {gold:3d}  {test:3d}"
            f"    {self.crossing:3d}  {self.words:5d} {self.correct_tags:5d}   "
            f"{percent(self.correct_tags, self.words):6.2f}"
        )


def score_sentence(
    number: int, gold: Tree | None, parse: Tree | None, parameters: EvalbParameters
) -> SentenceScore:
    """Compares a parse with the gold tree of its sentence.

    Args:
        number: which sentence it is.
        gold, parse: the trees; None is a tree without words.
        parameters: what is deleted and what is the same.

    Returns:
        `SentenceScore`.
    """
    gold_leaves, test_leaves = _leaves(gold), _leaves(parse)
    gold_tags = [tag for tag, _ in gold_leaves]
    # The tags that say which words are deleted.
    test_tags, uses_gold_tags = _fill_tags(test_leaves, gold_leaves)
    gold_kept = [tag not in parameters.delete_labels for tag in gold_tags]
    test_kept = [tag not in parameters.delete_labels for tag in test_tags]
    _reconcile_quotes(gold_leaves, test_leaves, gold_kept, test_kept, parameters)
    gold_words = [leaf for leaf, kept in zip(gold_leaves, gold_kept, strict=True) if kept]
    test_words = [leaf for leaf, kept in zip(test_leaves, test_kept, strict=True) if kept]
    gold_brackets = _brackets(gold, gold_kept, parameters)
    test_brackets = _brackets(parse, test_kept, parameters)
    result = SentenceScore(
        number=number,
        length=sum(tag not in parameters.delete_labels_for_length for tag in gold_tags),
        status=_status(gold_words, test_words),
        gold_brackets=len(gold_brackets),
        test_brackets=len(test_brackets),
        uses_gold_tags=uses_gold_tags,
    )
    if result.status != VALID:
        return result
    return dataclasses.replace(
        result,
        matched=_count_matched(gold_brackets, test_brackets, parameters),
        crossing=_count_crossing(gold_brackets, test_brackets),
        words=len(gold_words),
        correct_tags=sum(
            parameters.are_equal(tag, other)
            for (tag, _), (other, _) in zip(gold_words, test_words, strict=True)
        ),
    )


def percent(part: float, whole: float) -> float:
    """Returns 100 * part / whole, and 0 if there is nothing."""
    return 100.0 * part / whole if whole else 0.0


def _leaves(tree):
    return [] if tree is None else list(tree.leaves())


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


def _reconcile_quotes(gold_leaves, test_leaves, gold_kept, test_kept, parameters):
    """Keeps, in both trees, the quotation marks that only one of them deletes."""
    if not parameters.quote_labels:
        return
    gold_positions = [i for i, (tag, _) in enumerate(gold_leaves) if tag != EMPTY_TAG]
    test_positions = [i for i, (tag, _) in enumerate(test_leaves) if tag != EMPTY_TAG]
    for i, j in zip(gold_positions, test_positions, strict=False):
        (gold_tag, gold_word), (test_tag, test_word) = gold_leaves[i], test_leaves[j]
        is_quote = gold_word == test_word and gold_word in _QUOTES
        if is_quote and {gold_tag, test_tag} <= {*parameters.quote_labels}:
            gold_kept[i] = test_kept[j] = gold_kept[i] or test_kept[j]


def _status(gold_words, test_words):
    if not test_words:
        return SKIP
    return VALID if [word for _, word in gold_words] == [word for _, word in test_words] else ERROR


def _brackets(tree: Tree | None, kept: list[bool], parameters) -> list[tuple[str, int, int]]:
    """Returns label, start and end of every bracket that counts, in the order they open."""
    brackets: list[list] = []
    open_brackets: list[list] = []
    leaf, end = 0, 0
    for part in () if tree is None else tree.walk():
        if part is None:
            open_brackets.pop()[2] = end
        elif part.is_leaf:
            end += kept[leaf]
            leaf += 1
        else:
            bracket = [strip_function_tags(part.label), end, end]
            brackets.append(bracket)
            open_brackets.append(bracket)
    # An empty label is the root of a treebank's tree as it was read.
    return [
        (label, start, end)
        for label, start, end in brackets
        if start < end and label and label not in parameters.delete_labels
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
