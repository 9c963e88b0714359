"""The tokenised, compound-split BLEU of the Transformer paper's En-De results.

The paper scored newstest2014 with the procedure of its authors' toolkit: Moses' German tokenizer,
hyphenated compounds split ("rich-text format" becomes "rich ##AT##-##AT## text format"), then
Moses' multi-bleu, without smoothing. It gives 0.7 to 1.5 more than sacreBLEU for the same output.
Use it only to compare with papers of that time.
"""

import itertools
import re
from collections.abc import Sequence

from keras_transformer.evaluation.bleu import Score, bleu_score, reference_streams

# Perl's s/(\S)-(\S)/$1 ##AT##-##AT## $2/g.
_COMPOUND = re.compile(r"(\S)-(\S)")
_CONTROL = re.compile(r"[\x00-\x1f]")
# Runs of two and more full stops; one full stop is left to the rules for abbreviations.
_ELLIPSIS = re.compile(r"\.{2,}")
# Letters of any script and marks count as letters (\w without the underscore).
_SYMBOL = re.compile(r"([^\w\s.,`'\-]|_)")
# A comma stays inside a number ("5,300") only.
_COMMA = re.compile(r"(?<!\d),|,(?!\d)")

# Words that keep their full stop in the middle of a sentence.
_ABBREVIATIONS = frozenset(
    """
    Abs Abt Adr Alt Anm Art Aufl Ausg Bd Best bspw bzgl bzw ca Chr Co Corp d Dez Dipl Dr DR dt ebd
    ehem eig einschl entspr etc evtl evt Fa Fam Feb Forts Fr Frl geb gegr Gen gest gez ggf gest
    Hon Hr Hrn Hrsg i Inc Ing inkl insb Jan Jg Jh jr Jr Jun Jul Kap kath kl Lt Ltd Mag max MdB Mio
    min Mr Mrd Mrs Ms MS Mt Nov Nr Okt Op Ord österr Pf Pfd phil Ph Pkt Pl Pos Prof prot rd Red
    Rel Rep Reps Rev röm S schwed schweiz Sen Sens Sept Sep Sgt sog Sr St staatl Std Str stellv
    Str Supt Tel u usf usw v vgl vers vorm wiss z zool zit zus zzgl
    """.split()
)


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    lowercase: bool = False,
) -> Score:
    """Tokenised BLEU with compounds split, comparable to the paper's English-German figures.

    Both sides are given as plain text, as for `corpus_bleu`, and are tokenised here.

    Differs from the original: the tokenizer follows the rules of Moses' `tokenizer.perl -l de` with
    an abbreviation list of its own, and the references are tokenised like the hypotheses, where the
    original used a tokenised reference file.

    Args:
        hypotheses, references, lowercase: as in `corpus_bleu`.

    Returns:
        `Score`, with the details of `corpus_bleu`; its name and signature ("tok:moses-de+atat")
        keep it apart from sacreBLEU.

    Raises:
        UserError: if the numbers of lines differ or there are none.

    Example:

    >>> from keras_transformer.evaluation import paper_bleu
    >>> paper_bleu(["Ein Text-Format von heute."], ["Ein Text-Format von heute."]).score
    100.0

    Reference: Vaswani et al. (2017), section 6.1; tensor2tensor's `get_ende_bleu.sh`.
    """
    from sacrebleu.metrics import BLEU

    streams = reference_streams(hypotheses, references)
    metric = BLEU(lowercase=lowercase, tokenize="none", smooth_method="none", force=True)
    score = bleu_score(
        "BLEU (tokenised, compounds split)",
        metric,
        [tokenize_for_paper(line) for line in hypotheses],
        [[tokenize_for_paper(line) for line in stream] for stream in streams],
    )
    signature = score.signature.replace("tok:none", "tok:moses-de+atat")
    return Score(score.name, score.score, signature, score.details)


def tokenize_for_paper(text: str) -> str:
    """Returns German text tokenised for `paper_bleu`, with hyphenated compounds split."""
    # As in the original, "a-b-c" is split once: the match of "a-b" has used up the "b".
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokenize_german(text))


def tokenize_german(text: str) -> str:
    """Returns text tokenised by the rules of Moses' tokenizer for German, without XML escapes."""
    text = _CONTROL.sub("", " ".join(text.split()))
    text = _SYMBOL.sub(r" \1 ", text)
    text = _ELLIPSIS.sub(r" \g<0> ", text)
    text = _COMMA.sub(" , ", text)
    words = text.replace("'", " ' ").split()
    return " ".join(
        _split_period(word, after) for word, after in itertools.zip_longest(words, words[1:])
    )


def _split_period(word, after):
    """Separates the full stop, unless the word is an abbreviation, an ordinal or all stops."""
    stem = word.removesuffix(".")
    if stem in ("", word) or _ELLIPSIS.fullmatch(word):
        return word
    keeps_period = after is not None and (
        ("." in stem and any(character.isalpha() for character in stem))
        or after[0].islower()
        or stem in _ABBREVIATIONS
        or (len(stem) == 1 and stem.isascii() and stem.isalpha())
        or (stem.isdecimal() and len(stem) <= 2)
        or set(stem) <= set("IVX")
    )
    return word if keeps_period else f"{stem} ."
