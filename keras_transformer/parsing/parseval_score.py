"""Labeled bracket F1 of constituency trees as EVALB counts it, and its tables."""

import collections
import dataclasses
from collections.abc import Iterable

from keras_transformer.errors import UserError
from keras_transformer.parsing.evalb import (
    ERROR,
    SKIP,
    VALID,
    EvalbParameters,
    SentenceScore,
    percent,
    score_sentence,
)
from keras_transformer.parsing.trees import Tree

_HEAD = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"""
_RULE = "=" * 76
_SUMMARY = """\
Number of sentence        = {num_sentences:6d}
Number of Error sentence  = {num_errors:6d}
Number of Skip  sentence  = {num_skipped:6d}
Number of Valid sentence  = {num_valid:6d}
Bracketing Recall         = {recall:6.2f}
Bracketing Precision      = {precision:6.2f}
Bracketing FMeasure       = {f1:6.2f}
Complete match            = {complete_match:6.2f}
Average crossing          = {average_crossing:6.2f}
No crossing               = {no_crossing:6.2f}
2 or less crossing        = {two_or_less_crossing:6.2f}
Tagging accuracy          = {tagging_accuracy:6.2f}"""


@dataclasses.dataclass(frozen=True)
class ParsevalSummary:
    """One block of EVALB's summary; its figures are percentages over valid sentences.

    Attributes:
        num_sentences, num_errors, num_skipped: Number of all sentences; of those with an error; of
            those whose parse has no words.
        recall, precision, f1: Over the brackets of all valid sentences together.
        complete_match: Share of sentences whose brackets are all right.
        average_crossing: Number of crossing brackets per sentence, not a percentage.
        no_crossing, two_or_less_crossing: Share of sentences with 0, or at most 2, such brackets.
        tagging_accuracy: Share of words whose tag is right, among the words that are not deleted.
        strict_recall, strict_precision, strict_f1: Over all sentences; in a sentence that is not
            valid, no bracket is right.

    Example:

    >>> from keras_transformer.parsing import Tree, parseval
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
        """Number of valid sentences, from which the percentages are computed."""
        return self.num_sentences - self.num_errors - self.num_skipped

    @classmethod
    def of(cls, sentences: Iterable[SentenceScore]) -> "ParsevalSummary":
        """Returns the summary of sentences.

        Args:
            sentences: Any number of `SentenceScore`.
        """
        sentences = list(sentences)
        valid = [sentence for sentence in sentences if sentence.status == VALID]
        status = collections.Counter(sentence.status for sentence in sentences)
        return cls(
            num_sentences=len(sentences),
            num_errors=status[ERROR],
            num_skipped=status[SKIP],
            complete_match=percent(sum(s.is_complete for s in valid), len(valid)),
            average_crossing=sum(s.crossing for s in valid) / max(len(valid), 1),
            no_crossing=percent(sum(s.crossing == 0 for s in valid), len(valid)),
            two_or_less_crossing=percent(sum(s.crossing <= 2 for s in valid), len(valid)),
            tagging_accuracy=percent(
                sum(s.correct_tags for s in valid), sum(s.words for s in valid)
            ),
            **_bracket_scores(valid),
            **{f"strict_{name}": score for name, score in _bracket_scores(sentences).items()},
        )

    def __str__(self) -> str:
        return _SUMMARY.format(**dataclasses.asdict(self), num_valid=self.num_valid)


@dataclasses.dataclass(frozen=True)
class ParsevalScore:
    """The result of `parseval`.

    Attributes:
        all, short: The summaries of all sentences, and of those of at most
            `parameters.cutoff_length` words.
        sentences: The lines of EVALB's table, one for each sentence.
        parameters: The rules for deleted and equal labels.

    Example:

    >>> from keras_transformer.parsing import Tree, parseval
    >>> tree = Tree.parse("(S (NP (PRP It)) (VP (VBZ works)) (. .))")
    >>> print(parseval([tree], [tree]))
    F1 100.00 (COLLINS.prm|tags:parse|sentences:1|errors:0|skipped:0)
    """

    all: ParsevalSummary
    short: ParsevalSummary
    sentences: tuple[SentenceScore, ...] = dataclasses.field(repr=False)
    parameters: EvalbParameters

    @property
    def f1(self) -> float:
        """EVALB's labeled bracket F1 of all valid sentences, 0 to 100."""
        return self.all.f1

    @property
    def strict_f1(self) -> float:
        """The F1 of all sentences, 0 to 100; an invalid sentence counts with no right bracket."""
        return self.all.strict_f1

    @property
    def uses_gold_tags(self) -> bool:
        """Whether a parse had no tags, so that words were deleted by the tags of the gold tree."""
        return any(sentence.uses_gold_tags for sentence in self.sentences)

    @property
    def signature(self) -> str:
        """The conditions of the score; scores with different signatures are not comparable."""
        tags = "gold" if self.uses_gold_tags else "parse"
        counts = f"sentences:{self.all.num_sentences}|errors:{self.all.num_errors}"
        return f"{self.parameters}|tags:{tags}|{counts}|skipped:{self.all.num_skipped}"

    def __str__(self) -> str:
        return f"F1 {self.f1:.2f} ({self.signature})"

    def summary(self) -> str:
        """Returns EVALB's summary, and figures that EVALB does not print."""
        tags = "the gold tree's" if self.uses_gold_tags else "the parse's own"
        return (
            f"=== Summary ===\n\n-- All --\n{self.all}\n\n"
            f"-- len<={self.parameters.cutoff_length} --\n{self.short}\n\n"
            f"-- Not of EVALB --\nF1, errors count as 0     = {self.strict_f1:6.2f}\n"
            f"Tags for deletion         = {tags}"
        )

    def table(self) -> str:
        """Returns EVALB's table, with a line for each sentence."""
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
    """Returns labeled bracket precision, recall and F1 of parses, by the rules of EVALB.

    Punctuation, traces and brackets labeled TOP are deleted. Brackets match one to one, also in a
    unary chain, if their spans and labels are equal. EVALB's figures leave out sentences whose
    words then differ (errors) and sentences whose parse has no words left (skipped).

    Trees may be as in the file or clean (`clean_tree`). A line may contain several trees or none.

    Args:
        gold: The trees of the treebank, or their lines.
        parses: Trees or lines of the same sentences in the same order; None for no parse.
        parameters: None for `COLLINS.prm`; `EvalbParameters.new()` for `new.prm`.

    Raises:
        UserError: If the numbers of trees differ or there are none, or there are more errors than
            `parameters.max_errors + 1`.

    Example:

    >>> from keras_transformer.parsing import Tree, parseval
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
        rule = "There must be as many parses as gold trees"
        raise UserError(f"{rule}. Received: {len(parses)} parses and {len(gold)} gold trees")
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
            "There are more errors than MAX_ERROR allows; EVALB stops there too. The first is in "
            f"sentence {errors[0]}. Received: {len(errors):,} errors, "
            f"MAX_ERROR {parameters.max_errors}"
        )
    return ParsevalScore(
        all=ParsevalSummary.of(sentences),
        short=ParsevalSummary.of(s for s in sentences if s.length <= parameters.cutoff_length),
        sentences=sentences,
        parameters=parameters,
    )


def _bracket_scores(sentences: list[SentenceScore]) -> dict[str, float]:
    """Returns recall, precision and F1 over all brackets, in percent."""
    matched = sum(sentence.matched for sentence in sentences if sentence.status == VALID)
    recall = percent(matched, sum(sentence.gold_brackets for sentence in sentences))
    precision = percent(matched, sum(sentence.test_brackets for sentence in sentences))
    # In EVALB's order, on which the last digit depends.
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"recall": recall, "precision": precision, "f1": f1}
