"""Text that is already split into subwords: whitespace pieces, joined at `@@ `."""

import collections
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from keras_transformer.data.lines import text_lines
from keras_transformer.data.tokenizer import SPECIAL_PIECES, UNK_ID, Tokenizer
from keras_transformer.errors import UserError

# ASCII only, as in TensorFlow's string operations: a no-break space is part of its piece.
_WHITESPACE = re.compile(r"[ \t\n\r\f\v]+")
_JOIN = re.compile(r"@@( |\Z)")


class SubwordTokenizer(Tokenizer):
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
        pieces = tuple(pieces)
        self._pieces = SPECIAL_PIECES + pieces
        self._ids = {piece: number for number, piece in enumerate(pieces, len(SPECIAL_PIECES))}
        for piece in pieces:
            if not isinstance(piece, str) or not piece or _WHITESPACE.search(piece):
                rule = "A piece of a subword vocabulary is text without whitespace"
                raise UserError(f"{rule}. Received: {piece=}")
        repeated, count = collections.Counter(self._pieces).most_common(1)[0]
        if count > 1:
            rule = "The pieces of a subword vocabulary must differ from each other, and from the "
            rule += f"reserved pieces {SPECIAL_PIECES}"
            raise UserError(f"{rule}. Received: {repeated!r} twice")

    def __reduce__(self):
        return type(self), (self._pieces[len(SPECIAL_PIECES) :],)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        find, split = self._ids.get, _WHITESPACE.split
        return [[find(piece, UNK_ID) for piece in split(text) if piece] for text in texts]

    def _decode(self, ids):
        return join_subwords(" ".join(self.pieces(ids)))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[int(token)] for token in ids]

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
        counts.update(_WHITESPACE.split(line))
    allowed = counts.keys() - {"", *SPECIAL_PIECES}
    frequent = [piece for piece in allowed if counts[piece] >= min_count]
    if not frequent:
        raise UserError("The text for the vocabulary is empty.")
    frequent.sort(key=lambda piece: (-counts[piece], piece))
    return SubwordTokenizer(frequent[: max_size and max_size - len(SPECIAL_PIECES)])
