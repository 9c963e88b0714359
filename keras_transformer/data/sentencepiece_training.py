"""Learning a SentencePiece vocabulary from text."""

import io
import logging
import os
import re
from collections.abc import Iterable, Iterator

import sentencepiece

from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.data.text_lines import sample_lines, text_lines
from keras_transformer.errors import UserError

_LOGGER = logging.getLogger(__name__)
MODEL_TYPES = ("bpe", "unigram")
_LONGEST_LINE_BYTES = 16_384


def train_sentencepiece(
    files_or_lines: str | os.PathLike | Iterable,
    vocab_size: int,
    model_type: str = "bpe",
    *,
    max_sentences: int = 2_000_000,
    seed: int = 0,
    normalization: str = "nmt_nfkc",
    allow_fewer: bool = False,
) -> SentencePieceTokenizer:
    """Returns a subword vocabulary learned from text.

    Every character of the text is in the vocabulary, and all others are written in bytes. So
    nothing is unknown, and only the normalisation changes text.

    Args:
        files_or_lines: as in `text_lines`; a corpus gives one vocabulary for both languages.
        vocab_size: number of ids, including the 4 reserved ones and the 256 bytes.
        model_type: `"bpe"` or `"unigram"`.
        max_sentences: maximum number of lines; of a larger text, every line has the same chance:
            2 million of WMT's lengths need less than 3 GB of memory.
        seed: seed of that choice.
        normalization: SentencePiece's rule: `"nmt_nfkc"`, `"nmt_nfkc_cf"` (and lower case),
            `"nfkc"`, `"nfkc_cf"` or `"identity"`.
        allow_fewer: learn as many pieces as possible, and log it, if the text is too small.

    Raises:
        UserError: if the text is empty, or `vocab_size` is too large or too small for it; the
            message says which sizes are possible.
        ValueError: for a wrong `model_type`, `vocab_size` or `max_sentences`.

    Example:

    >>> lines = ["red house", "blue house"]
    >>> keras_transformer.data.train_sentencepiece(lines, vocab_size=280).vocab_size
    280
    """
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type must be one of {MODEL_TYPES}. Received: model_type={model_type!r}"
        )
    for argument, value in (("vocab_size", vocab_size), ("max_sentences", max_sentences)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise ValueError(
                f"{argument} must be a positive integer below 2**31. Received: {argument}={value!r}"
            )
    lines = (line for line in text_lines(files_or_lines) if line.strip())
    kept = sample_lines(lines, max_sentences, seed)
    if not kept:
        raise UserError("The text for the vocabulary is empty.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_emptied(kept),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name=normalization,
            max_sentence_length=_LONGEST_LINE_BYTES,
            hard_vocab_limit=not allow_fewer,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            minloglevel=2,  # errors only; they are raised as well
        )
    except (RuntimeError, OSError) as error:
        raise UserError(_training_problem(str(error), vocab_size, model_type)) from error
    tokenizer = SentencePieceTokenizer(model.getvalue())
    if tokenizer.vocab_size < vocab_size:
        sizes = f"{vocab_size:,}", f"{tokenizer.vocab_size:,}"
        _LOGGER.info("The text is too small for a vocabulary of %s: it has %s pieces.", *sizes)
    return tokenizer


def _emptied(lines: list[str]) -> Iterator[str]:
    """Yields the lines and removes each from the list: sentencepiece keeps a copy."""
    lines.reverse()
    while lines:
        yield lines.pop()


def _training_problem(message: str, vocab_size: int, model_type: str) -> str:
    """Returns one line that explains why sentencepiece could not train."""
    too_large = re.search(r"value <= (\d+)", message)
    if too_large:
        return (
            f"The text is too small for a {model_type} vocabulary of {vocab_size}: at most "
            f"{too_large[1]} pieces are possible. Received: vocab_size={vocab_size}"
        )
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return (
            f"The vocabulary must hold every character of the text, 256 bytes and 4 reserved ids: "
            f"at least {too_small[1]} pieces. Received: vocab_size={vocab_size}"
        )
    if "sentences_.empty" in message or "all_chars_count" in message:
        return (
            "The text for the vocabulary is empty, or all of its lines are longer than "
            f"{_LONGEST_LINE_BYTES} bytes."
        )
    return f"The vocabulary could not be trained: {' '.join(message.split())}"
