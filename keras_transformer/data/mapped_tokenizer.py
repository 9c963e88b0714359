"""SentencePiece models whose pieces have their ids in another vocabulary, as in OPUS-MT."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from keras_transformer.data.sentencepiece_tokenizer import (
    load_processor,
    rounded_scores,
    spelling_processor,
    without_surrogates,
)
from keras_transformer.data.tokenizer import LANGUAGE, SPACE, SPECIAL_PIECES, UNK_ID, Tokenizer
from keras_transformer.errors import UserError


class MappedTokenizer(Tokenizer):
    """Splits text with a SentencePiece model, and looks the pieces up in a vocabulary.

    This is the tokenizer of Marian and OPUS-MT models: source and target have a SentencePiece model
    each, and share one vocabulary. A language code such as `>>por<<` at the beginning of a text is
    one piece. Pieces that are not in the vocabulary become the unknown id, decoded as nothing.

    Args:
        model: `bytes`, a SentencePiece model with any ids of its own.
        pieces: Sequence of `str`, the vocabulary from id 4 on.
        languages: Language codes, pieces of the vocabulary. If there are any, each text to encode
            must begin with one of them.

    Raises:
        UserError: If `model` is not a complete SentencePiece model, or a piece is repeated.

    Example:

    >>> from keras_transformer.data import MappedTokenizer, train_sentencepiece
    >>> learned = train_sentencepiece(["red house", "blue house"], vocab_size=280)
    >>> tokenizer = MappedTokenizer(learned.model, learned.pieces(range(4, 280))[::-1])
    >>> tokenizer.decode(tokenizer.encode("red house"))
    'red house'
    """

    suffix = ".json"

    def __init__(self, model: bytes, pieces: Sequence[str], languages: Sequence[str] = ()):
        # tensorflow-text may have another version of SentencePiece, which rounds sums of scores
        # differently. Sums of these scores are exact.
        self.model = rounded_scores(bytes(model))
        self.languages = tuple(languages)
        self._processor = load_processor(self.model)
        self._pieces = (*SPECIAL_PIECES, *pieces)
        if not all(isinstance(piece, str) for piece in (*self._pieces, *self.languages)):
            raise UserError("The pieces of a vocabulary and its language codes must be text.")
        first = len(SPECIAL_PIECES)
        self._ids = {piece: number for number, piece in enumerate(self._pieces[first:], first)}
        if len(self._ids.keys() | set(SPECIAL_PIECES)) < len(self._pieces):
            rule = (
                f"The pieces of a vocabulary must differ from each other and from {SPECIAL_PIECES}"
            )
            raise UserError(rule + ".")
        for language in self.languages:
            if language not in self._ids:
                rule = "A language code must be a piece of the vocabulary"
                raise UserError(f"{rule}. Received: {language!r}")

    def __reduce__(self):
        return type(self), (self.model, self._pieces[len(SPECIAL_PIECES) :], self.languages)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text, without BOS and EOS.

        Args:
            texts: Sequence of `str`.

        Raises:
            UserError: If a text does not begin with one of the `languages`. An empty text need not.
        """
        codes, rests = [], []
        for text in texts:
            code = LANGUAGE.match(text)
            codes.append([code[0]] if code else [])
            if self.languages and not text.strip():
                text = ""
            elif self.languages and (code is None or code[0] not in self.languages):
                known = ", ".join(self.languages[:8]) + ", ..." * (len(self.languages) > 8)
                rule = "A text for this model must begin with the code of its target language"
                raise UserError(f"{rule}: {known}. Received: {text[:40]!r}")
            rests.append(without_surrogates(text[code.end() :] if code else text))
        split = self._processor.encode(rests, out_type=str)
        find = self._ids.get
        return [
            [find(piece, UNK_ID) for piece in code + pieces]
            for code, pieces in zip(codes, split, strict=True)
        ]

    def _decode(self, ids):
        pieces = (self._pieces[token] for token in ids if token != UNK_ID)
        return "".join(pieces).replace(SPACE, " ").strip(" ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[int(token)] for token in ids]

    def spell(self, pieces: Sequence[str]) -> list[list[int]]:
        texts = [piece.replace(SPACE, " ") for piece in pieces]
        split = spelling_processor(self.model).encode(texts, out_type=str)
        return [[self._ids.get(piece, UNK_ID) for piece in spelling] for spelling in split]

    def _file_content(self):
        content = {
            "pieces": self._pieces[len(SPECIAL_PIECES) :],
            "languages": self.languages,
            "sentencepiece": base64.b64encode(self.model).decode(),
        }
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def from_file_content(cls, content: bytes) -> "MappedTokenizer":
        """Returns the tokenizer whose `save` wrote `content`.

        Args:
            content: The file as `bytes`.

        Raises:
            UserError: If `content` is not such a file.
        """
        try:
            values = json.loads(content)
            model = base64.b64decode(values["sentencepiece"], validate=True)
            arguments = model, list(values["pieces"]), list(values["languages"])
        except (ValueError, LookupError, TypeError, RecursionError, binascii.Error) as error:
            raise UserError("The file of the tokenizer is damaged.") from error
        return cls(*arguments)

    def in_graph(self) -> Any:
        from keras_transformer.data.graph_tokenizers import graph_mapped_pieces

        return graph_mapped_pieces(self.model, self._pieces, self.languages)
