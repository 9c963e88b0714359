"""The tokenised, compound-split BLEU of the Transformer paper's En-De results.

The paper scored newstest2014 with the procedure of its authors' toolkit: typographic quotes are
replaced, Moses' tokenizer for German is applied, hyphenated compounds are split ("rich-text format"
becomes "rich ##AT##-##AT## text format"), and Moses' multi-bleu scores without smoothing. It gives
0.7 to 1.5 more than sacreBLEU for the same output. Use it only to compare with papers of that time.
"""

import functools
import re
from collections.abc import Sequence

from keras_transformer.evaluation.bleu import Score, bleu_score, reference_streams

# Perl's s/(\S)-(\S)/$1 ##AT##-##AT## $2/g.
_COMPOUND = re.compile(r"(\S)-(\S)")
_QUOTES = str.maketrans(dict.fromkeys("„“”‟«»", '"'))


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    lowercase: bool = False,
) -> Score:
    """Tokenised BLEU with compounds split, comparable to the paper's English-German figures.

    Both sides are given as plain text, as for `corpus_bleu`, and are tokenised here.

    Differs from the original: the tokenizer is that of `sacremoses`, without XML escapes, and the
    references are prepared like the hypotheses, where the original used a tokenised reference file
    whose typographic quotes were `"`. So all of „ “ ” « » become `"` here, on both sides: this is
    what tensor2tensor's figures need (transformer_base on newstest2014: 27.52 by sacreBLEU, 29.02
    by its script).

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

    Reference: Vaswani et al. (2017), section 6.1; tensor2tensor's `get_ende_bleu.sh` and its issue
    317.
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
    tokens = _moses().tokenize(text.translate(_QUOTES), return_str=True, escape=False)
    # As in the original, "a-b-c" is split once: the match of "a-b" has used up the "b".
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokens)


@functools.cache
def _moses():
    from sacremoses import MosesTokenizer

    return MosesTokenizer(lang="de")
