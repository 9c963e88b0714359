"""Labelled bracket F1 of constituency trees as EVALB counts it, and its tables."""

import dataclasses
from collections.abc import Iterable

from keras_transformer.errors import UserError
from keras_transformer.parsing.evaluation.brackets import (
    ERROR,
    SKIP,
    VALID,
    SentenceScore,
    percent,
    score_sentence,
)
from keras_transformer.parsing.evaluation.evalb_parameters import EvalbParameters
from keras_transformer.parsing.trees import Tree

_HEAD = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"""
_RULE = "=" * 76


@dataclasses.dataclass(frozen=True)
class ParsevalSummary:
    """One block of EVALB's summary; the figures are percentages, of valid sentences only.

    Attributes:
        num_sentences: how many sentences there are.
        num_errors: in how many the words of parse and gold tree differ, or a line is broken.
        num_skipped: of how many the parse has no words.
        recall, precision, f1: of brackets, of all sentences taken together.
        complete_match: share of sentences whose brackets are all right.
        average_crossing: crossing brackets per sentence, no percentage.
        no_crossing, two_or_less_crossing: share of sentences with so many crossing brackets.
        tagging_accuracy: share of words, those that are not deleted, whose tag is right.
        strict_recall, strict_precision, strict_f1: of all sentences: in those that are not valid,
            every bracket of the gold tree is missed and every bracket of the parse wrong.

    Example:

    >>> from keras_transformer.parsing import Tree
    >>> from keras_transformer.parsing import parseval
    >>> gold = [Tree.parse("(NP (DT the) (NN dog))")] * 2
    >>> summary = parseval(gold, [gold[0], None]).all
    >>> summary.num_valid, summary.f1, round(summary.strict_f1, 2)
    (1, 100.0, 66.67)
    """

    num_sentences: int
    num_errors: int
    num_skipped: int
    recall: float
    precision: float
    f1: float
    complete_match: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float
    tagging_accuracy: float
    strict_recall: float
    strict_precision: float
    strict_f1: float

    @property
    def num_valid(self) -> int:
        """How many sentences the figures are of."""
        return self.num_sentences - self.num_errors - self.num_skipped

    @classmethod
    def of(cls, sentences: Iterable[SentenceScore]) -> "ParsevalSummary":
        """Adds up sentences.

        Args:
            sentences: any number of them.

        Returns:
            `ParsevalSummary`.
        """
        sentences = list(sentences)
        valid = [sentence for sentence in sentences if sentence.status == VALID]
        recall, precision, f1 = _bracket_scores(valid)
        strict_recall, strict_precision, strict_f1 = _bracket_scores(sentences)
        crossing = [sentence.crossing for sentence in valid]
        return cls(
            num_sentences=len(sentences),
            num_errors=sum(sentence.status == ERROR for sentence in sentences),
            num_skipped=sum(sentence.status == SKIP for sentence in sentences),
            recall=recall,
            precision=precision,
            f1=f1,
            complete_match=percent(sum(sentence.is_complete for sentence in valid), len(valid)),
            average_crossing=sum(crossing) / len(valid) if valid else 0.0,
            no_crossing=percent(sum(count == 0 for count in crossing), len(valid)),
            two_or_less_crossing=percent(sum(count <= 2 for count in crossing), len(valid)),
            tagging_accuracy=percent(
                sum(sentence.correct_tags for sentence in valid),
                sum(sentence.words for sentence in valid),
            ),
            strict_recall=strict_recall,
            strict_precision=strict_precision,
            strict_f1=strict_f1,
        )

    def __str__(self) -> str:
        counts = {
            "Number of sentence": self.num_sentences,
            "Number of Error sentence": self.num_errors,
            "Number of Skip  sentence": self.num_skipped,
            "Number of Valid sentence": self.num_valid,
        }
        figures = {
            "Bracketing Recall": self.recall,
            "Bracketing Precision": self.precision,
            "Bracketing FMeasure": self.f1,
            "Complete match": self.complete_match,
            "Average crossing": self.average_crossing,
            "No crossing": self.no_crossing,
            "2 or less crossing": self.two_or_less_crossing,
            "Tagging accuracy": self.tagging_accuracy,
        }
        lines = [f"{name:25} = {count:6d}" for name, count in counts.items()]
        lines += [f"{name:25} = {figure:6.2f}" for name, figure in figures.items()]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class ParsevalScore:
    """What `parseval` returns.

    Attributes:
        all: the summary of all sentences.
        short: that of sentences up to `parameters.cutoff_length`.
        sentences: a line of EVALB's table for each sentence.
        parameters: what was deleted and what was the same.

    Example:

    >>> from keras_transformer.parsing import Tree
    >>> from keras_transformer.parsing import parseval
    >>> tree = Tree.parse("(S (NP (PRP It)) (VP (VBZ works)) (. .))")
    >>> score = parseval([tree], [tree])
    >>> str(score)
    'F1 100.00 (COLLINS.prm|tags:parse|sentences:1|errors:0|skipped:0)'
    >>> print(score.table())
      Sent.                        Matched  Bracket   Cross        Correct Tag
     ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy
    ============================================================================
       1    3    0  100.00 100.00     3      3    3      0      2     2   100.00
    """

    all: ParsevalSummary
    short: ParsevalSummary
    sentences: tuple[SentenceScore, ...] = dataclasses.field(repr=False)
    parameters: EvalbParameters

    @property
    def f1(self) -> float:
        """EVALB's labelled bracket F1 of all valid sentences, 0 to 100."""
        return self.all.f1

    @property
    def strict_f1(self) -> float:
        """The F1 of all sentences, where one that is not valid has no bracket right, 0 to 100."""
        return self.all.strict_f1

    @property
    def uses_gold_tags(self) -> bool:
        """Whether a parse had no tags, so that the gold tree's said which words are deleted.

        The tagging accuracy then counts the tags that are not there as wrong.
        """
        return any(sentence.uses_gold_tags for sentence in self.sentences)

    @property
    def signature(self) -> str:
        """How it was measured; two figures with different signatures are not comparable."""
        return (
            f"{self.parameters}|tags:{'gold' if self.uses_gold_tags else 'parse'}|"
            f"sentences:{self.all.num_sentences}|errors:{self.all.num_errors}|"
            f"skipped:{self.all.num_skipped}"
        )

    def __str__(self) -> str:
        return f"F1 {self.f1:.2f} ({self.signature})"

    def summary(self) -> str:
        """Returns EVALB's summary, and below it what EVALB does not print."""
        tags = "the gold tree's" if self.uses_gold_tags else "the parse's own"
        lines = ["=== Summary ===", "", "-- All --", str(self.all), ""]
        lines += [f"-- len<={self.parameters.cutoff_length} --", str(self.short), ""]
        lines += [
            "-- Not of EVALB --",
            f"F1, errors count as 0     = {self.strict_f1:6.2f}",
            f"Tags for deletion         = {tags}",
        ]
        return "\n".join(lines)

    def table(self) -> str:
        """Returns EVALB's table, a line for each sentence."""
        return "\n".join([_HEAD, _RULE, *map(str, self.sentences)])

    def to_dict(self) -> dict:
        """Returns both summaries and the signature as a dict that JSON can hold."""
        return {
            "signature": self.signature,
            "uses_gold_tags": self.uses_gold_tags,
            "cutoff_length": self.parameters.cutoff_length,
            "all": dataclasses.asdict(self.all),
            "short": dataclasses.asdict(self.short),
        }


def parseval(
    gold: Iterable[Tree | str | None],
    parses: Iterable[Tree | str | None],
    parameters: EvalbParameters | None = None,
) -> ParsevalScore:
    """Labelled bracket precision, recall and F1 of parses, by the rules of EVALB.

    - Words with the tags of punctuation and traces are deleted from each tree by its own tags, then
      constituents without words, and the brackets labelled TOP. A parse whose tags are `XX` takes
      the gold tree's for this.
    - Labels count up to their first `-` or `=`; ADVP and PRT are the same.
    - Brackets match one to one, also those of a unary chain, if their spans and labels are equal.
    - Sentences whose words then differ are errors, those whose parse has no words left are skipped;
      both are left out of EVALB's figures.

    Trees may be as they were read or clean (`keras_transformer.data.clean_tree`); a root without a
    label counts as TOP. A line of text is read as EVALB reads it: it may hold several trees or
    none, and one with unbalanced brackets is an error.

    Args:
        gold: the trees of the treebank, or their lines.
        parses: as many trees or lines, of the same sentences in the same order; None where there
            is none.
        parameters: the defaults are those of `COLLINS.prm`; `EvalbParameters.new()` are others.

    Returns:
        `ParsevalScore`.

    Raises:
        UserError: if the numbers of trees differ or there are none, or there are more errors than
            `parameters.max_errors + 1`.

    Example:

    >>> from keras_transformer.parsing import Tree
    >>> from keras_transformer.parsing import parseval
    >>> gold = Tree.parse("(S (NP (PRP It)) (VP (VBZ works) (ADVP (RB well))) (. .))")
    >>> parse = Tree.parse("(S (NP (PRP It)) (VP (VBZ works)) (ADVP (RB well)) (. .))")
    >>> score = parseval([gold], [parse])
    >>> round(score.f1, 2), score.all.complete_match
    (75.0, 0.0)

    Reference: Black et al. (1991), "A Procedure for Quantitatively Comparing the Syntactic Coverage
    of English Grammars"; Sekine and Collins (1997), EVALB.
    """
    parameters = parameters or EvalbParameters()
    gold, parses = list(gold), list(parses)
    if len(gold) != len(parses):
        raise UserError(
            "There must be as many parses as gold trees. "
            f"Received: {len(parses)} parses and {len(gold)} gold trees"
        )
    if not gold:
        raise UserError("There are no trees to score.")
    sentences = tuple(
        score_sentence(number, gold_tree, parse, parameters)
        for number, (gold_tree, parse) in enumerate(zip(gold, parses, strict=True), start=1)
    )
    errors = [f"{s.number}: {error}" for s in sentences for error in s.errors]
    # EVALB compares before it counts, so one more than MAX_ERROR passes.
    if parameters.max_errors is not None and len(errors) > parameters.max_errors + 1:
        raise UserError(
            f"There are more errors than MAX_ERROR allows, where EVALB stops; the first is of "
            f"sentence {errors[0]}. Received: {len(errors):,} errors, "
            f"MAX_ERROR {parameters.max_errors}"
        )
    return ParsevalScore(
        all=ParsevalSummary.of(sentences),
        short=ParsevalSummary.of(s for s in sentences if s.length <= parameters.cutoff_length),
        sentences=sentences,
        parameters=parameters,
    )


def _bracket_scores(sentences):
    """Recall, precision and F1 of all brackets of some sentences, in percent."""
    matched = sum(sentence.matched for sentence in sentences if sentence.status == VALID)
    recall = percent(matched, sum(sentence.gold_brackets for sentence in sentences))
    precision = percent(matched, sum(sentence.test_brackets for sentence in sentences))
    # In EVALB's order, on which the last digit depends.
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return recall, precision, f1
