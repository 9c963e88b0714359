"""Vocabularies that are learned from text, and the tokenizers of a training."""

import collections
import contextlib
import io
import itertools
import logging
import os
import pathlib
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import get_args

import sentencepiece

from keras_transformer.checks import check_choice, check_positive_integer
from keras_transformer.data.corpora import open_text
from keras_transformer.data.lookup_tokenizers import WHITESPACE, SubwordTokenizer
from keras_transformer.data.mixed_corpus import MixedCorpus
from keras_transformer.data.scripts import nfc_rules
from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer, parse_model
from keras_transformer.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SPECIAL_PIECES,
    UNK_ID,
    Tokenizer,
    as_symbols,
)
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError
from keras_transformer.settings.training_settings import Normalization, TrainingSettings

MODEL_TYPES = ("bpe", "unigram")
NORMALIZATIONS = get_args(Normalization)
_LONGEST_LINE_BYTES = 16_384
_NO_TEXT = (
    "The text for the vocabulary is empty, or all of its lines are longer than "
    f"{_LONGEST_LINE_BYTES} bytes."
)
_LOGGER = logging.getLogger(__name__)


def learn_vocabularies(
    corpus: Iterable, settings, report: Callable[[str], object] = _LOGGER.info
) -> TokenizerPair:
    """Returns the tokenizers that `TrainingSettings` describe, learned from pairs of `str`."""
    size = "all" if settings.vocab_size is None else f"{settings.vocab_size:,}"
    sides = "for both languages" if settings.shared_vocabulary else "for each language"
    report(f"Learning a vocabulary of {size} {settings.tokenizer} pieces {sides}.")
    symbols = corpus.symbols if isinstance(corpus, MixedCorpus) else ()
    if settings.shared_vocabulary:
        return TokenizerPair(learn_vocabulary(corpus, settings, symbols=symbols))
    source = learn_vocabulary((pair[0] for pair in corpus), settings, symbols=symbols)
    return TokenizerPair(source, learn_vocabulary((pair[1] for pair in corpus), settings))


def learn_vocabulary(
    lines: Iterable, settings, min_count: int = 1, symbols: tuple[str, ...] = ()
) -> Tokenizer:
    """Returns a tokenizer whose vocabulary is learned from lines or pairs of them."""
    if settings.tokenizer == "subword":
        if settings.normalization != TrainingSettings.normalization:
            raise UserError(
                "`normalization` goes with bpe and unigram; subword takes the text as it is. "
                f"Received: normalization={settings.normalization!r}"
            )
        if symbols:
            rule = "Tags of corpora need a vocabulary of bpe or unigram, which has them as symbols"
            raise UserError(f'{rule}. Received: tokenizer="subword" with the tag {symbols[0]!r}')
        return build_subword_vocabulary(lines, settings.vocab_size, min_count)
    if settings.vocab_size is None:
        raise UserError("`vocab_size` must be set to learn subwords. Received: vocab_size=None")
    size, kind = settings.vocab_size, settings.tokenizer
    options = {"normalization": settings.normalization, "symbols": symbols}
    return train_sentencepiece(lines, size, kind, allow_fewer=True, **options)


def train_sentencepiece(
    files_or_lines: str | os.PathLike | Iterable,
    vocab_size: int,
    model_type: str = "bpe",
    *,
    max_sentences: int = 2_000_000,
    seed: int = 0,
    normalization: str = "nfc",
    allow_fewer: bool = False,
    symbols: Iterable[str] = (),
) -> SentencePieceTokenizer:
    """Returns a subword vocabulary learned from text.

    It contains every character of the text; others are encoded as bytes, so no text is unknown.
    Lines of more than 16,384 bytes are left out, with a logged warning.

    Args:
        files_or_lines: As in `text_lines`; a corpus gives one vocabulary for both languages.
        vocab_size: Number of ids, including the 4 reserved ones and the 256 bytes.
        model_type: `"bpe"` or `"unigram"`.
        max_sentences: Maximum number of lines, a random sample of a larger text; 2 million lines of
            WMT need less than 3 GB of memory.
        seed: Seed of that sample.
        normalization: `"nfc"`, which loses nothing that a reader needs: accents are composed and
            every kind of space becomes a plain one. SentencePiece's `"nmt_nfkc"` and `"nfkc"` also
            turn "x²" into "x2" and "，" into ","; the first takes the joiners of Persian and Hindi
            for spaces. `"nmt_nfkc_cf"` and `"nfkc_cf"` write lower case; `"identity"` changes
            nothing.
        allow_fewer: Learn as many pieces as possible, and log it, if the text is too small.
        symbols: Further pieces, such as `">>fra<<"`. Wherever a text has one, it is this piece,
            without normalization and BPE-dropout.

    Raises:
        UserError: If the text is empty, `vocab_size` is too large or too small for it, or a symbol
            has white space or is a reserved piece.
        ValueError: For a wrong `model_type`, `normalization`, `vocab_size` or `max_sentences`.

    Example:

    >>> lines = ["red house", "blue house"]
    >>> keras_transformer.data.train_sentencepiece(lines, vocab_size=280).vocab_size
    280
    """
    symbols = as_symbols(symbols)
    check_choice("model_type", model_type, MODEL_TYPES)
    check_choice("normalization", normalization, NORMALIZATIONS)
    check_positive_integer("vocab_size", vocab_size, 2**31 - 1)
    check_positive_integer("max_sentences", max_sentences, 2**31 - 1)
    kept = sample_lines(_usable(text_lines(files_or_lines)), max_sentences, seed)
    if not kept:
        raise UserError(_NO_TEXT)
    model = io.BytesIO()
    try:
        with _rules(normalization) as rules:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_emptied(kept),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                byte_fallback=True,
                character_coverage=1.0,
                **rules,
                max_sentence_length=_LONGEST_LINE_BYTES,
                hard_vocab_limit=not allow_fewer,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                user_defined_symbols=list(symbols),
                minloglevel=2,  # errors only; they are raised as well
            )
    except (RuntimeError, OSError) as error:
        raise UserError(_training_problem(str(error), vocab_size, model_type)) from error
    message = parse_model(model.getvalue())
    # The compiled rules are in the model; the file of the rules is gone.
    message.normalizer_spec.name = normalization
    message.normalizer_spec.ClearField("normalization_rule_tsv")
    tokenizer = SentencePieceTokenizer(message.SerializeToString())
    if tokenizer.vocab_size < vocab_size:
        sizes = f"{vocab_size:,}", f"{tokenizer.vocab_size:,}"
        _LOGGER.info("The text is too small for a vocabulary of %s: it has %s pieces.", *sizes)
    return tokenizer


@contextlib.contextmanager
def _rules(normalization):
    """Yields SentencePiece's option of a normalization; it reads rules of ours from a file."""
    if normalization != "nfc":
        yield {"normalization_rule_name": normalization}
        return
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "nfc.tsv")
        path.write_text(nfc_rules(), encoding="ascii")
        yield {"normalization_rule_tsv": str(path)}


def _usable(lines):
    """Yields lines with text that sentencepiece does not ignore, and reports the others."""
    num_long = 0
    for line in lines:
        is_long = len(line.encode("utf-8", "surrogatepass")) > _LONGEST_LINE_BYTES
        num_long += is_long
        if not is_long and line.strip():
            yield line
    if num_long:
        text = "%d lines of more than %d bytes are left out of the text for the vocabulary."
        _LOGGER.warning(text, num_long, _LONGEST_LINE_BYTES)


def _emptied(lines):
    """Yields the lines and removes each from the list: sentencepiece keeps a copy."""
    lines.reverse()
    while lines:
        yield lines.pop()


def _training_problem(message, vocab_size, model_type):
    """Returns one line that explains why sentencepiece could not train."""
    if most := re.search(r"value <= (\d+)", message):
        rule = f"The text is too small for a {model_type} vocabulary of {vocab_size}: at most "
        return f"{rule}{most[1]} pieces are possible. Received: {vocab_size=}"
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        rule = "The vocabulary must hold every character of the text, 256 bytes and 4 reserved ids"
        return f"{rule}: at least {least[1]} pieces. Received: {vocab_size=}"
    if "sentences_.empty" in message or "all_chars_count" in message:
        return _NO_TEXT
    return f"The vocabulary could not be trained: {' '.join(message.split())}"


def build_subword_vocabulary(
    files_or_lines: str | os.PathLike | Iterable, max_size: int | None = None, min_count: int = 1
) -> SubwordTokenizer:
    """Returns the vocabulary of text that is already split into subwords.

    The most frequent piece is first; equally frequent ones are in the order of code points.

    Args:
        files_or_lines: As in `text_lines`; a corpus gives one vocabulary for both languages.
        max_size: Maximum number of ids, the 4 reserved ones included; `None`: every piece.
        min_count: Pieces that are rarer are left out.

    Raises:
        UserError: If no piece is left.
        ValueError: If `max_size` leaves no room for a piece.

    Example:

    >>> keras_transformer.data.build_subword_vocabulary(["b a", "b c@@ d"]).pieces(range(4, 8))
    ['b', 'a', 'c@@', 'd']
    """
    if max_size is not None and max_size <= len(SPECIAL_PIECES):
        rule = f"max_size must be above {len(SPECIAL_PIECES)}, the number of reserved ids"
        raise ValueError(f"{rule}. Received: {max_size=}")
    counts: collections.Counter[str] = collections.Counter()
    for line in text_lines(files_or_lines):
        counts.update(WHITESPACE.split(line))
    allowed = counts.keys() - {"", *SPECIAL_PIECES}
    frequent = [piece for piece in allowed if counts[piece] >= min_count]
    if not frequent:
        problem = f"has no word that occurs {min_count} times" if allowed else "is empty"
        raise UserError(f"The text for the vocabulary {problem}.")
    frequent.sort(key=lambda piece: (-counts[piece], piece))
    return SubwordTokenizer(frequent[: max_size and max_size - len(SPECIAL_PIECES)])


def text_lines(files_or_lines: str | os.PathLike | Iterable) -> Iterator[str]:
    """Yields lines of text from files, an iterable of lines, or a corpus of pairs.

    Args:
        files_or_lines: A path of a plain or `.gz` text file; or an iterable of `pathlib.Path`
            (files), `str` (lines, not paths), or tuples of `str` (pairs, as of a corpus).

    Raises:
        UserError: For a missing, damaged or not UTF-8 file.
        TypeError: For items of another type.

    Example:

    >>> from keras_transformer.data import PairsCorpus, text_lines
    >>> list(text_lines(PairsCorpus([("one", "eins"), ("two", "zwei")])))
    ['one', 'eins', 'two', 'zwei']
    """
    if isinstance(files_or_lines, (str, os.PathLike)):
        files_or_lines = [pathlib.Path(files_or_lines)]
    for item in files_or_lines:
        if isinstance(item, str):
            yield item
        elif isinstance(item, pathlib.PurePath):
            yield from open_text(item)
        elif isinstance(item, tuple):
            yield from item
        else:
            rule = (
                "Text is taken from str (a line), pathlib.Path (a file) or tuples of str (a pair)"
            )
            raise TypeError(f"{rule}. Received: {item=} of type {type(item).__name__}")


def sample_lines(lines: Iterable[str], max_lines: int, seed: int) -> list[str]:
    """Returns a uniform random sample of at most `max_lines` lines (reservoir sampling).

    If there are no more lines than that, all are returned in order. Only the sample is in memory.
    """
    lines = iter(lines)
    kept = list(itertools.islice(lines, max_lines))
    generator = random.Random(seed)
    for count, line in enumerate(lines, start=max_lines + 1):
        slot = generator.randrange(count)
        if slot < max_lines:
            kept[slot] = line
    return kept
