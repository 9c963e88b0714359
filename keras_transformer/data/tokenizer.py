"""The interface of both kinds of tokenizers, and the methods that they share."""

import abc
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write

# The reserved ids, the same in every vocabulary of this library, and their pieces, as sentencepiece
# prints them.
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "\u2581"  # SentencePiece writes it for a space.
# A language code, such as `>>por<<`, which may stand before a text.
LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)


def as_symbols(symbols: Iterable[str]) -> tuple[str, ...]:
    """Returns the different symbols; raises a `UserError` if one cannot be a piece."""
    different = tuple(dict.fromkeys(symbols))
    for symbol in different:
        if not isinstance(symbol, str) or symbol.replace(SPACE, " ").split() != [symbol]:
            rule = "A tag or symbol is text without white space, such as '>>fra<<'"
            raise UserError(f"{rule}. Received: {symbol!r}")
        if symbol in SPECIAL_PIECES:
            rule = f"A tag or symbol must not be one of the reserved pieces {SPECIAL_PIECES}"
            raise UserError(f"{rule}. Received: {symbol!r}")
    return different


class Tokenizer(abc.ABC):
    """Turns text to ids and back, such as `SentencePieceTokenizer` and `SubwordTokenizer`."""

    suffix: str  # of its file
    languages: tuple[str, ...] = ()  # codes, one of which each text must begin with

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, the reserved ones included."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """Pieces that no text splits, such as the tags of a `MixedCorpus`."""
        return self.languages

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text, without BOS and EOS.

        Args:
            texts: Sequence of `str`.
        """

    @property
    def beginning(self) -> tuple[int, ...]:
        """The ids that every text with words begins with, such as that of a language."""
        return ()

    @property
    def language(self) -> str:
        """The code of the language that stands before texts; `""` without one."""
        return ""

    @property
    def language_ids(self) -> dict[str, int]:
        """The id of each language that can stand before texts, by its codes."""
        return {}

    def with_language(self, code: str) -> "Tokenizer":
        """Returns this tokenizer with the id of another language before each text.

        Args:
            code: One of `language_ids`.

        Raises:
            UserError: If there is no such language.
        """
        raise UserError(f"This model has no languages to choose from. Received: {code!r}")

    @abc.abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the piece of the vocabulary for every id, for example to label plots.

        Args:
            ids: Int `[length]`.
        """

    def spell(self, pieces: Sequence[str]) -> list[list[int]]:
        """Returns the ids that spell each piece of another vocabulary.

        Args:
            pieces: Sequence of `str`, as `pieces` of the other tokenizer returns them.
        """
        return self.encode_batch(pieces)

    @abc.abstractmethod
    def in_graph(self) -> Any:
        """Returns this tokenizer as a `tf.Module`; `SentencePieceTokenizer` needs tensorflow-text.

        `tokenize(text)` takes strings `[batch]` and returns a ragged int32 `[batch, None]`;
        `detokenize(ids)` takes int32 `[batch, length]` and returns strings `[batch]`. Bytes that
        are not UTF-8 become U+FFFD.

        Raises:
            UserError: If tensorflow-text is needed and not installed.
        """

    @abc.abstractmethod
    def _decode(self, ids: list[int]) -> str: ...  # without padding, BOS and EOS

    @abc.abstractmethod
    def _file_content(self) -> bytes: ...

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without BOS and EOS.

        Args:
            text: `str`.
        """
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of `ids`: up to the first EOS, without padding and BOS.

        Args:
            ids: Int `[length]`. The unknown id becomes ` ⁇ ` (`SentencePieceTokenizer`) or `<unk>`.

        Raises:
            ValueError: If `ids` does not have one dimension.
        """
        array, vocab_size = np.asarray(ids), self.vocab_size
        if array.ndim != 1:
            rule = "ids must have one dimension [length]"
            raise ValueError(f"{rule}. Received: ids of shape {array.shape}")
        text = itertools.takewhile(lambda token: token != EOS_ID, array.tolist())
        visible = (token for token in text if token not in (PAD_ID, BOS_ID))
        # A model whose embedding is larger than the vocabulary can emit ids outside of it.
        return self._decode([token if 0 <= token < vocab_size else UNK_ID for token in visible])

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of every row of ids; see `decode`.

        Args:
            batch: Int `[batch, length]`, or rows of different lengths.
        """
        return [self.decode(ids) for ids in batch]

    def save(self, directory: str | os.PathLike, name: str = "tokenizer") -> pathlib.Path:
        """Returns the path of the file to which it writes the vocabulary.

        Args:
            directory: The folder, created if it does not exist.
            name: File name without its suffix: `.model` for a SentencePiece model, `.txt` for one
                piece per line in the order of ids, `.json` for a `MappedTokenizer`.
        """
        path = pathlib.Path(directory) / f"{name}{self.suffix}"
        with atomic_write(os.path.realpath(path)) as temporary:
            temporary.write_bytes(self._file_content())
        return path
