"""Tokenizers that look pieces up in a vocabulary: of split text, or of a SentencePiece model."""

import base64
import collections
import copy
import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from keras_transformer.data.languages import language_pieces, nearest_code
from keras_transformer.data.sentencepiece_tokenizer import (
    load_processor,
    rounded_scores,
    spelling_processor,
    without_surrogates,
)
from keras_transformer.data.tokenizer import LANGUAGE, SPACE, SPECIAL_PIECES, UNK_ID, Tokenizer
from keras_transformer.errors import UserError

# ASCII only, as in TensorFlow's string operations: a no-break space is part of its piece.
WHITESPACE = re.compile(r"[ \t\n\r\f\v]+")
_JOIN = re.compile(r"@@( |\Z)")
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class _LookupTokenizer(Tokenizer):
    """Has a vocabulary: the reserved pieces, and others that differ from them and each other."""

    def __init__(self, pieces: Sequence[str]):
        self._pieces, first = (*SPECIAL_PIECES, *pieces), len(SPECIAL_PIECES)
        for piece in self._pieces:
            if not isinstance(piece, str):
                raise UserError(f"The pieces of a vocabulary must be text. Received: {piece=}")
        repeated, count = collections.Counter(self._pieces).most_common(1)[0]
        if count > 1:
            rule = "The pieces of a vocabulary must differ from each other, and from the "
            rule += f"reserved pieces {SPECIAL_PIECES}"
            raise UserError(f"{rule}. Received: {repeated!r} twice")
        self._ids = {piece: number for number, piece in enumerate(self._pieces[first:], first)}

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[int(token)] for token in ids]


class SubwordTokenizer(_LookupTokenizer):
    """Turns whitespace-separated pieces into ids, and ids into text in which `@@ ` is removed.

    For text that another program, such as subword-nmt, has split. Pieces that are not in the
    vocabulary, or spell a reserved one such as `</s>`, become the unknown id, decoded as `<unk>`.

    Args:
        pieces: Sequence of `str`, the pieces from id 4 on, usually the most frequent first.

    Raises:
        UserError: For an empty or repeated piece, or one with whitespace in it.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> tokenizer = SubwordTokenizer(["a", "play@@", "house"])
    >>> tokenizer.encode("a play@@ house there")
    [4, 5, 6, 1]
    >>> tokenizer.decode([4, 5, 6, 1, 3, 0])
    'a playhouse <unk>'

    Reference: Sennrich et al., 2016, https://arxiv.org/abs/1508.07909 (`@@` as in subword-nmt).
    """

    suffix = ".txt"

    def __init__(self, pieces: Sequence[str]):
        super().__init__(pieces)
        for piece in self._pieces:
            if not piece or WHITESPACE.search(piece):
                rule = "A piece of a subword vocabulary is text without whitespace"
                raise UserError(f"{rule}. Received: {piece=}")

    def __reduce__(self):
        return type(self), (self._pieces[len(SPECIAL_PIECES) :],)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        find, split = self._ids.get, WHITESPACE.split
        return [[find(piece, UNK_ID) for piece in split(text) if piece] for text in texts]

    def _decode(self, ids):
        return join_subwords(" ".join(self.pieces(ids)))

    def _file_content(self):
        return "".join(f"{piece}\n" for piece in self._pieces).encode("utf-8")

    @classmethod
    def from_file_content(cls, content: bytes) -> "SubwordTokenizer":
        """Returns the tokenizer whose `save` wrote `content`.

        Args:
            content: The file as `bytes`.

        Raises:
            UserError: If `content` is not such a vocabulary.
        """
        try:
            pieces = content.decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError("The subword vocabulary is not valid UTF-8.") from error
        if tuple(pieces[: len(SPECIAL_PIECES)]) != SPECIAL_PIECES:
            special = ", ".join(SPECIAL_PIECES)
            raise UserError(f"A subword vocabulary begins with the lines {special}.")
        if pieces.pop() != "":
            raise UserError("The subword vocabulary is incomplete: its last line has no end.")
        return cls(pieces[len(SPECIAL_PIECES) :])

    def in_graph(self) -> Any:
        from keras_transformer.data.graph_tokenizers import graph_subwords

        return graph_subwords(self._pieces[len(SPECIAL_PIECES) :])


def join_subwords(text: str) -> str:
    """Returns text with its subwords joined to words: every `@@ ` is removed."""
    return _JOIN.sub("", text)


class MappedTokenizer(_LookupTokenizer):
    """Splits text with a SentencePiece model, and looks the pieces up in a vocabulary.

    This is the tokenizer of Marian and OPUS-MT models: source and target have a SentencePiece model
    each, and share one vocabulary. A language code such as `>>por<<` at the beginning of a text is
    one piece. Pieces that are not in the vocabulary become the unknown id, decoded as nothing.

    Args:
        model: `bytes`, a SentencePiece model with any ids of its own.
        pieces: Sequence of `str`, the vocabulary from id 4 on.
        languages: Language codes, pieces of the vocabulary. If there are any, each text to encode
            must begin with one of them.
        controls: Pieces of the vocabulary that no text contains and that are decoded as nothing,
            such as the languages of M2M100.
        prefix: The control that is put in front of the ids of each text, or `""`.

    Raises:
        UserError: If `model` is not a complete SentencePiece model, a piece is repeated, or a
            language, a control or the prefix is unknown.

    Example:

    >>> from keras_transformer.data import MappedTokenizer, train_sentencepiece
    >>> learned = train_sentencepiece(["red house", "blue house"], vocab_size=280)
    >>> tokenizer = MappedTokenizer(learned.model, learned.pieces(range(4, 280))[::-1])
    >>> tokenizer.decode(tokenizer.encode("red house"))
    'red house'
    """

    suffix = ".json"

    def __init__(
        self,
        model: bytes,
        pieces: Sequence[str],
        languages: Sequence[str] = (),
        controls: Sequence[str] = (),
        prefix: str = "",
    ):
        super().__init__(pieces)
        # tensorflow-text may have another version of SentencePiece, which rounds sums of scores
        # differently. Sums of these scores are exact.
        self.model = rounded_scores(bytes(model))
        self._processor = load_processor(self.model)
        self.languages, self.controls, self.prefix = tuple(languages), tuple(controls), prefix
        for piece in (*self.languages, *self.controls):
            if piece not in self._ids:
                rule = "A language code or a control must be a piece of the vocabulary"
                raise UserError(f"{rule}. Received: {piece!r}")
        if prefix and prefix not in self.controls:
            raise UserError(f"The prefix must be one of the controls. Received: {prefix=}")
        # `<s>_` is the published piece `<s>`.
        silent = {*self.controls, self._pieces[UNK_ID], *(f"{piece}_" for piece in SPECIAL_PIECES)}
        # The text of each piece, in UTF-8.
        self._texts = [b"" if piece in silent else _text_of(piece) for piece in self._pieces]

    def __reduce__(self):
        pieces = self._pieces[len(SPECIAL_PIECES) :]
        return type(self), (self.model, pieces, self.languages, self.controls, self.prefix)

    def __copy__(self):
        other = object.__new__(type(self))
        vars(other).update(vars(self))  # The copy shares the processor and the vocabulary.
        return other

    @property
    def beginning(self) -> tuple[int, ...]:
        return (self._ids[self.prefix],) if self.prefix else ()

    @property
    def language(self) -> str:
        return self.prefix.strip("_")

    @functools.cached_property
    def language_ids(self) -> dict[str, int]:
        return {code: self._ids[piece] for code, piece in language_pieces(self.controls).items()}

    def with_language(self, code: str) -> "MappedTokenizer":
        if code not in self.language_ids:
            known = [piece.strip("_") for piece in self.controls]
            shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            near = nearest_code(code, known)
            advice = f" (did you mean {near}?)" if near else f". Allowed: {shown or 'none'}"
            raise UserError(f"The model has no language {code!r}{advice}")
        other = copy.copy(self)
        other.prefix = self._pieces[self.language_ids[code]]
        return other

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text, without BOS and EOS.

        Args:
            texts: Sequence of `str`.

        Raises:
            UserError: If a text does not begin with one of the `languages`. An empty text need not.
        """
        codes, rests = [], []
        for text in texts:
            # The languages of other models are not in the text.
            code = None if self.controls else LANGUAGE.match(text)
            codes.append([code[0]] if code else [])
            if self.languages and not text.strip():
                text = ""
            elif self.languages and (code is None or code[0] not in self.languages):
                known = ", ".join(self.languages[:8]) + (", ..." if len(self.languages) > 8 else "")
                rule = "A text for this model must begin with the code of its target language"
                raise UserError(f"{rule}: {known}. Received: {text[:40]!r}")
            rests.append(without_surrogates(text[code.end() :] if code else text))
        split = self._processor.encode(rests, out_type=str)
        find = self._ids.get
        encoded = (
            [find(piece, UNK_ID) for piece in code + pieces]
            for code, pieces in zip(codes, split, strict=True)
        )
        return [[*self.beginning, *ids] if ids else [] for ids in encoded]

    def _decode(self, ids):
        text = b"".join([self._texts[token] for token in ids]).decode("utf-8", "replace")
        return text.replace(SPACE, " ").strip(" ")

    def spell(self, pieces: Sequence[str]) -> list[list[int]]:
        texts = [piece.replace(SPACE, " ") for piece in pieces]
        split = spelling_processor(self.model).encode(texts, out_type=str)
        return [[self._ids.get(piece, UNK_ID) for piece in spelling] for spelling in split]

    def _file_content(self):
        content = {
            "pieces": self._pieces[len(SPECIAL_PIECES) :],
            "languages": self.languages,
            "controls": self.controls,
            "prefix": self.prefix,
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
            # Files of older versions lack these.
            controls, prefix = list(values.get("controls", ())), str(values.get("prefix", ""))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError("The file of the tokenizer is damaged.") from error
        return cls(*arguments, controls, prefix)

    def in_graph(self) -> Any:
        from keras_transformer.data.graph_tokenizers import graph_mapped_pieces

        of_text = self.languages, bool(self.controls), self.beginning
        return graph_mapped_pieces(self.model, self._pieces, self._texts, *of_text)


def _text_of(piece):
    """Returns the bytes of a piece; `<0x41>` is a byte of a letter that has no piece."""
    byte = _BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else piece.encode("utf-8")
