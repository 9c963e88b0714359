"""Scores of translations: BLEU, chrF, the paper's BLEU and exact match, with their signatures."""

import dataclasses
import functools
import logging
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from keras_transformer.data.scripts import UNSPACED
from keras_transformer.errors import UserError, one_line

# Languages that `paper_bleu` has rules for.
PAPER_LANGUAGES = "de", "en"
# sacreBLEU's tokenizers of languages without spaces between words, and of Korean. For the others of
# them it recommends "flores200", which is downloaded; characters need no file.
_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn", "yue", "wuu", "nan", "hak", "lzh"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys("th tha lo lao km khm my mya bo bod dz dzo".split(), "char"),
}
_SAMPLE = 1000  # lines that are searched for spaces
_LOGGER = logging.getLogger(__name__)
_FEW_TEXTS = 100  # for a comparison of two systems
# Perl's s/(\S)-(\S)/$1 ##AT##-##AT## $2/g.
_COMPOUND = re.compile(r"(\S)-(\S)")
_QUOTES = str.maketrans(dict.fromkeys("„“”‟«»", '"'))


@dataclasses.dataclass(frozen=True)
class Score:
    """A score and the way it was computed.

    Attributes:
        name: Name of the metric, e.g. "BLEU".
        score: The value, 0 to 100.
        signature: Settings of the metric; scores with different signatures are not comparable.
        details: Parts of the score, e.g. BLEU's precisions and brevity penalty.

    Example:

    >>> from keras_transformer.evaluation import Score
    >>> str(Score("exact match", 50.0, "case:mixed"))
    'exact match 50.00 (case:mixed)'
    """

    name: str
    score: float
    signature: str
    details: dict = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f} ({self.signature})"

    def to_dict(self) -> dict:
        """Returns the fields as a dict for JSON."""
        return dataclasses.asdict(self)


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Score:
    """Returns the BLEU of a whole corpus, computed by sacreBLEU.

    Args:
        hypotheses: The translations, one string per sentence, not tokenized.
        references: One string per sentence; or several such lists, one per reference file.
        lowercase: Whether to ignore case.
        tokenize: sacreBLEU's tokenizer, e.g. "13a", "intl", "char", "zh"; "none" for text that is
            already tokenized, as in older papers.

    Returns:
        `Score`; its details are `precisions` (four), `brevity_penalty`, `hypothesis_length` and
        `reference_length`, the lengths in tokens.

    Raises:
        UserError: If the numbers of lines differ, there are none, or the tokenizer is unknown.

    Example:

    >>> from keras_transformer.evaluation import corpus_bleu
    >>> corpus_bleu(["um halb acht am Montag"], ["um halb acht am Montag"]).score
    100.0

    Reference: Papineni et al. (2002); Post (2018), "A Call for Clarity in Reporting BLEU Scores".
    """
    streams = _reference_streams(hypotheses, references)
    return _bleu_score("BLEU", make_bleu(tokenize, lowercase), hypotheses, streams)


def make_bleu(tokenize: str = "13a", lowercase: bool = False):
    """Returns sacreBLEU's metric; raises a `UserError` if the tokenizer is unknown or missing."""
    if tokenize not in BLEU.TOKENIZERS:
        rule = f"tokenize must be one of {', '.join(sorted(BLEU.TOKENIZERS))}"
        raise UserError(f"{rule}. Received: {tokenize=}")
    try:
        # Tokenized text ends in " ."; without `force`, sacreBLEU warns that this may be a mistake.
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")
    except (RuntimeError, OSError) as error:
        text = f"The tokenizer cannot be loaded: {one_line(error)} Received: {tokenize=}"
        raise UserError(text) from error


def bleu_tokenizer(language: str | None) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language, `"13a"` for most.

    Args:
        language: Code such as `"zh"`, `"zho_Hans"` or `"zh-TW"`; None if it is not known.

    Example:

    >>> from keras_transformer.evaluation import bleu_tokenizer
    >>> bleu_tokenizer("de"), bleu_tokenizer("zh"), bleu_tokenizer("tha_Thai")
    ('13a', 'zh', 'char')

    Reference: sacreBLEU's `--language-pair`; Post (2018).
    """
    return _TOKENIZERS.get(re.split("[-_]", language or "")[0].lower(), "13a")


def warn_without_spaces(references: Sequence[str], tokenize: str, advice: str) -> None:
    """Logs a warning with `advice` if BLEU would take each sentence for one word.

    Args:
        references, tokenize: The lines, and the name of the tokenizer.
    """
    letters = "".join(filter(str.isalpha, "".join(references[:_SAMPLE])))
    if tokenize in ("13a", "intl") and 2 * len(UNSPACED.findall(letters)) > len(letters):
        text = "Words of the references have no spaces between them, so BLEU with the tokenizer %s "
        _LOGGER.warning(text + "compares whole sentences: %s.", tokenize, advice)


def corpus_chrf(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    lowercase: bool = False,
    word_order: int = 0,
) -> Score:
    """Returns the chrF of a whole corpus (chrF++ with `word_order=2`), computed by sacreBLEU.

    Args:
        hypotheses, references, lowercase: As in `corpus_bleu`.
        word_order: Maximum order of word n-grams, counted in addition to character n-grams.

    Example:

    >>> from keras_transformer.evaluation import corpus_chrf
    >>> corpus_chrf(["halb acht"], ["halb acht"]).score
    100.0

    Reference: Popović (2015), "chrF: character n-gram F-score for automatic MT evaluation".
    """
    streams = _reference_streams(hypotheses, references)
    metric = CHRF(lowercase=lowercase, word_order=word_order)
    score = metric.corpus_score(list(hypotheses), streams).score
    return Score("chrF" + "+" * word_order, score, str(metric.get_signature()))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two systems' scores of the same texts, and whether their difference may be chance.

    Attributes:
        name: Name of the metric, `"BLEU"` or `"chrF"`.
        score, baseline: The scores of the system and of the baseline.
        p_value: Probability of a difference as large as this, in either direction, between systems
            of equal quality, from 0 to 1.
        signature: Settings of the metric and of the test.

    Example:

    >>> from keras_transformer.evaluation import Comparison
    >>> str(Comparison("BLEU", 40.5, 40.0, 0.21, ""))
    'BLEU +0.50 (p = 0.210)'
    """

    name: str
    score: float
    baseline: float
    p_value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.score - self.baseline:+.2f} (p = {self.p_value:.3f})"


def compare_systems(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> list[Comparison]:
    """Returns the `Comparison` of two systems by BLEU and by chrF: sacreBLEU's paired bootstrap.

    Both systems are scored on 1,000 samples of the texts, drawn with replacement. The seed is
    sacreBLEU's, 12345 unless the environment variable `SACREBLEU_SEED` says otherwise. Differs from
    sacreBLEU: `p_value` is twice its p, which counts differences in one direction only. With fewer
    than 100 texts, p is too small, and a warning says so.

    Args:
        hypotheses: The translations of the system.
        baseline: Those of the system to compare with, of the same texts.
        references, lowercase, tokenize: As in `corpus_bleu`.

    Raises:
        UserError: As `corpus_bleu`.

    Example:

    >>> from keras_transformer.evaluation import compare_systems
    >>> answers, references = ["um halb acht am Montag"] * 9, ["um halb acht am Montag"] * 9
    >>> [str(each) for each in compare_systems(answers, answers, references)]
    ['BLEU +0.00 (p = 1.000)', 'chrF +0.00 (p = 1.000)']

    Reference: Koehn (2004), "Statistical Significance Tests for Machine Translation Evaluation".
    """
    streams = _reference_streams(hypotheses, references)
    _reference_streams(baseline, references)
    if len(hypotheses) < _FEW_TEXTS:
        words = "%d texts are too few (below %d) to tell quality from chance: p is too small"
        _LOGGER.warning(words, len(hypotheses), _FEW_TEXTS)
    metrics = {"BLEU": make_bleu(tokenize, lowercase), "chrF": CHRF(lowercase=lowercase)}
    systems: list = [("baseline", list(baseline)), ("system", list(hypotheses))]
    test: Any = PairedTest(systems, metrics, streams, test_type="bs", n_samples=1000)
    signatures, results = test()
    del results["System"]  # the names
    comparisons = []
    for name, (key, (old, new)) in zip(metrics, results.items(), strict=True):
        # sacreBLEU's p of equal answers is the least possible.
        p_value = 1.0 if new.score == old.score else min(1.0, 2 * float(new.p_value))
        score, baseline_score = (min(float(result.score), 100.0) for result in (new, old))
        signature = str(signatures[key])
        comparisons.append(Comparison(name, score, baseline_score, p_value, signature))
    return comparisons


def exact_match(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    lowercase: bool = False,
) -> Score:
    """Returns the share of translations that equal one of their references, in percent.

    Args:
        hypotheses, references, lowercase: As in `corpus_bleu`; surrounding white space is ignored.

    Returns:
        `Score`; its details are `num_matches` and `num_sentences`.

    Example:

    >>> from keras_transformer.evaluation import exact_match
    >>> exact_match(["eins", "drei"], ["eins", "zwei"]).score
    50.0
    """
    streams = _reference_streams(hypotheses, references)
    num_matches = 0
    for lines in zip(hypotheses, *streams, strict=True):
        hypothesis, *correct = ((line.lower() if lowercase else line).strip() for line in lines)
        num_matches += hypothesis in correct
    details = {"num_matches": num_matches, "num_sentences": len(hypotheses)}
    signature = f"nrefs:{len(streams)}|case:{'lc' if lowercase else 'mixed'}"
    return Score("exact match", 100.0 * num_matches / len(hypotheses), signature, details)


def _reference_streams(hypotheses, references):
    """Returns the references as a list of lists, one per reference file; checks both sides."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise UserError("Hypotheses and references must be lists of lines, not one string.")
    is_single = len(references) > 0 and all(isinstance(line, str) for line in references)
    streams = [list(references)] if is_single else [list(stream) for stream in references]
    if not hypotheses:
        raise UserError("There are no hypotheses to score.")
    if not streams:
        raise UserError("There are no references to score against.")
    for number, stream in enumerate(streams, start=1):
        if len(stream) != len(hypotheses):
            which = "references" if len(streams) == 1 else f"references of list {number}"
            raise UserError(
                "There must be as many references as hypotheses. "
                f"Received: {len(hypotheses)} hypotheses and {len(stream)} {which}"
            )
    for side, lines in enumerate((hypotheses, *streams)):
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                name = "reference" if side else "hypothesis"
                raise UserError(f"Each {name} must be a string. Received: line {number} = {line!r}")
    return streams


def _bleu_score(name, metric, hypotheses, streams):
    result = metric.corpus_score(list(hypotheses), streams)
    details = {
        "precisions": list(result.precisions),
        "brevity_penalty": result.bp,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
    }
    # Rounding errors of the geometric mean can leave a perfect score slightly above 100.
    return Score(name, min(result.score, 100.0), str(metric.get_signature()), details)


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    lowercase: bool = False,
    language: str = "de",
) -> Score:
    """Returns tokenized BLEU, in German with split compounds as in the paper's figures.

    As in the procedure of the authors' toolkit, typographic quotes („ “ ” ‟ « ») are replaced,
    Moses' tokenizer is applied (of `sacremoses`, without XML escapes), in German hyphenated
    compounds are split ("rich-text format" becomes "rich ##AT##-##AT## text format"), and BLEU is
    not smoothed. The result is 0.7 to 1.5 points above sacreBLEU's for the same output. Use it only
    to compare with papers of that time.

    Args:
        hypotheses, references, lowercase: As in `corpus_bleu`.
        language: Language of the texts, `"de"` or `"en"`.

    Raises:
        UserError: As `corpus_bleu`, or if `language` is another.

    Example:

    >>> from keras_transformer.evaluation import paper_bleu
    >>> paper_bleu(["Ein Text-Format von heute."], ["Ein Text-Format von heute."]).score
    100.0

    Reference: Vaswani et al. (2017), section 6.1; tensor2tensor's `get_ende_bleu.sh`, issue 317.
    """
    if language not in PAPER_LANGUAGES:
        rule = f"language must be one of {', '.join(PAPER_LANGUAGES)}"
        raise UserError(f"{rule}. Received: {language=}")
    sides = (hypotheses, *_reference_streams(hypotheses, references))
    hypotheses, *streams = ([tokenize_for_paper(line, language) for line in side] for side in sides)
    metric = BLEU(lowercase=lowercase, tokenize="none", smooth_method="none", force=True)
    name, tokens = "BLEU (tokenized)", "tok:moses-en"
    if language == "de":
        name, tokens = "BLEU (tokenized, compounds split)", "tok:moses-de+atat"
    score = _bleu_score(name, metric, hypotheses, streams)
    return dataclasses.replace(score, signature=score.signature.replace("tok:none", tokens))


def tokenize_for_paper(text: str, language: str) -> str:
    """Returns text tokenized for `paper_bleu`; in German, with hyphenated compounds split."""
    tokens = _moses(language).tokenize(text.translate(_QUOTES), return_str=True, escape=False)
    # As in the original, "a-b-c" is split once: the match of "a-b" has consumed the "b".
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokens) if language == "de" else tokens


@functools.cache
def _moses(language):
    from sacremoses import MosesTokenizer

    return MosesTokenizer(lang=language)
