"""SentencePiece vocabularies: learned from text; the same ids in Python and in a graph."""

import functools
import io
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sentencepiece

from keras_transformer.data.bpe_dropout import BpeDropout
from keras_transformer.data.lines import sample_lines, text_lines
from keras_transformer.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SPACE,
    UNK_ID,
    Tokenizer,
    as_symbols,
)
from keras_transformer.errors import UserError

MODEL_TYPES = ("bpe", "unigram")
_LONGEST_LINE_BYTES = 16_384
_NO_TEXT = (
    "The text for the vocabulary is empty, or all of its lines are longer than "
    f"{_LONGEST_LINE_BYTES} bytes."
)
_DAMAGED = "This is not a SentencePiece model, or a damaged one."
_SCORE_STEPS = 2**12  # of 1. Sums up to 4,096 are exact in float32.
_LOGGER = logging.getLogger(__name__)


class SentencePieceTokenizer(Tokenizer):
    """Turns text into subword ids and back with a SentencePiece model.

    The reserved ids are padding 0, unknown 1, BOS 2, EOS 3; no text maps to them, not even `</s>`.

    Args:
        model: `bytes`, the serialized SentencePiece model.

    Raises:
        UserError: If `model` is not a complete SentencePiece model, or reserves other ids.

    Example:

    >>> lines = ["a red house", "a blue house", "the red door", "the blue door"]
    >>> tokenizer = keras_transformer.data.train_sentencepiece(lines, vocab_size=290)
    >>> tokenizer.decode(tokenizer.encode("the red house"))
    'the red house'

    Reference: Kudo and Richardson, 2018, "SentencePiece", https://arxiv.org/abs/1808.06226.
    """

    suffix = ".model"

    def __init__(self, model: bytes):
        self.model = bytes(model)
        self._processor = load_processor(self.model)
        _check_reserved_ids(self._processor)

    def __reduce__(self):
        return type(self), (self.model,)

    @property
    def vocab_size(self) -> int:
        return self._processor.get_piece_size()

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """SentencePiece's user-defined symbols: pieces that no text splits, such as `>>fra<<`."""
        pieces = _parse_model(self.model).pieces
        return tuple(piece.piece for piece in pieces if piece.type == piece.USER_DEFINED)

    @property
    def model_type(self) -> str:
        """The algorithm that split the text: `"bpe"`, `"unigram"`, `"word"` or `"char"`."""
        specification = _parse_model(self.model).trainer_spec
        return specification.ModelType.Name(specification.model_type).lower()

    def encode_batch(
        self, texts: Sequence[str], dropout: float = 0.0, seed: int | None = None
    ) -> list[list[int]]:
        """Returns the ids of every text, without BOS and EOS.

        Args:
            texts: Sequence of `str`. Lone surrogates, which UTF-8 cannot encode, become U+FFFD.
            dropout: Probability of leaving out a merge (BPE-dropout), which regularizes training.
            seed: Needed with dropout; the ids are a function of `texts`, `dropout` and `seed`.

        Raises:
            ValueError: If `dropout` is not in [0, 1), or above 0 without a seed or a BPE model.

        Reference: Provilkov et al., 2020, "BPE-Dropout", https://arxiv.org/abs/1910.13267.
        """
        texts = list(texts)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1). Received: {dropout=}")
        if dropout and self.model_type != "bpe":
            received = f"{dropout=} for a model of type {self.model_type!r}"
            raise ValueError(f"Dropout of merges needs a BPE model. Received: {received}")
        if dropout and seed is None:
            raise ValueError("Dropout of merges needs a seed. Received: seed=None")
        encode: Callable = self._processor.encode
        if dropout:
            encode = functools.partial(self._bpe_dropout.encode, dropout=dropout, seed=seed)
        try:
            return encode(texts)
        except (RuntimeError, TypeError):  # sentencepiece cannot take lone surrogates
            return encode([without_surrogates(text) for text in texts])

    @functools.cached_property
    def _bpe_dropout(self):
        return BpeDropout(self._processor, _parse_model(self.model))

    def _decode(self, ids):
        return self._processor.decode(ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(token)) for token in ids]

    def spell(self, pieces: Sequence[str]) -> list[list[int]]:
        return spelling_processor(self.model).encode([p.replace(SPACE, " ") for p in pieces])

    def _file_content(self):
        return self.model

    def in_graph(self) -> Any:
        from keras_transformer.data.graph_tokenizers import graph_sentencepiece

        return graph_sentencepiece(self.model, self.vocab_size)


def load_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns the processor of a SentencePiece model; raises a `UserError` if it is damaged."""
    message = _parse_model(model)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        processor.id_to_piece(list(range(processor.get_piece_size())))  # are they UTF-8?
    except Exception as error:  # several types
        raise UserError(_DAMAGED) from error
    # A file cut between two pieces is still a valid message, but what follows the pieces is gone.
    if not (message.HasField("trainer_spec") and message.HasField("normalizer_spec")):
        raise UserError("The SentencePiece model is incomplete.")
    return processor


def _check_reserved_ids(processor):
    ids = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
    if ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
        raise UserError(
            "A SentencePiece model must be trained with pad_id=0, unk_id=1, bos_id=2, eos_id=3. "
            "Received: pad_id={}, unk_id={}, bos_id={}, eos_id={}".format(*ids)
        )


def spelling_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns a processor that adds no space in front of a text, and removes none."""
    message = _parse_model(model)
    message.normalizer_spec.add_dummy_prefix = False
    message.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=message.SerializeToString())


def _parse_model(model: bytes):
    from sentencepiece import sentencepiece_model_pb2

    try:
        return sentencepiece_model_pb2.ModelProto.FromString(model)
    except Exception as error:  # protobuf's own
        raise UserError(_DAMAGED) from error


def rounded_scores(model: bytes) -> bytes:
    """Returns a SentencePiece model whose scores are rounded, so that their sums are exact."""
    message = _parse_model(model)
    for piece in message.pieces:
        if math.isfinite(piece.score):
            piece.score = round(piece.score * _SCORE_STEPS) / _SCORE_STEPS
    return message.SerializeToString()


def without_surrogates(text: str) -> str:
    """Returns text that UTF-8 can encode: lone surrogates become U+FFFD."""
    if not isinstance(text, str):
        raise TypeError(f"A tokenizer encodes str. Received: {text=}")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def train_sentencepiece(
    files_or_lines: str | os.PathLike | Iterable,
    vocab_size: int,
    model_type: str = "bpe",
    *,
    max_sentences: int = 2_000_000,
    seed: int = 0,
    normalization: str = "nmt_nfkc",
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
        normalization: `"nmt_nfkc"`, `"nmt_nfkc_cf"` (and lower case), `"nfkc"`, `"nfkc_cf"` or
            `"identity"`.
        allow_fewer: Learn as many pieces as possible, and log it, if the text is too small.
        symbols: Further pieces, such as `">>fra<<"`. Wherever a text has one, it is this piece,
            without normalization and BPE-dropout.

    Raises:
        UserError: If the text is empty, `vocab_size` is too large or too small for it, or a symbol
            has white space or is a reserved piece.
        ValueError: For a wrong `model_type`, `vocab_size` or `max_sentences`.

    Example:

    >>> lines = ["red house", "blue house"]
    >>> keras_transformer.data.train_sentencepiece(lines, vocab_size=280).vocab_size
    280
    """
    symbols = as_symbols(symbols)
    if model_type not in MODEL_TYPES:
        raise ValueError(f"model_type must be one of {MODEL_TYPES}. Received: {model_type=}")
    for argument, value in (("vocab_size", vocab_size), ("max_sentences", max_sentences)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            message = f"{argument} must be a positive integer below 2**31"
            raise ValueError(f"{message}. Received: {argument}={value!r}")
    kept = sample_lines(_usable(text_lines(files_or_lines)), max_sentences, seed)
    if not kept:
        raise UserError(_NO_TEXT)
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
            user_defined_symbols=list(symbols),
            minloglevel=2,  # errors only; they are raised as well
        )
    except (RuntimeError, OSError) as error:
        raise UserError(_training_problem(str(error), vocab_size, model_type)) from error
    tokenizer = SentencePieceTokenizer(model.getvalue())
    if tokenizer.vocab_size < vocab_size:
        sizes = f"{vocab_size:,}", f"{tokenizer.vocab_size:,}"
        _LOGGER.info("The text is too small for a vocabulary of %s: it has %s pieces.", *sizes)
    return tokenizer


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
