"""Saving and loading of tokenizers."""

import os
import pathlib

from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_transformer.data.subword_tokenizer import SubwordTokenizer
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError

_KINDS = (SentencePieceTokenizer, SubwordTokenizer)


def save_tokenizer(
    tokenizer: Tokenizer, directory: str | os.PathLike, name: str = "tokenizer"
) -> pathlib.Path:
    """Writes a tokenizer where `load_tokenizer` finds it.

    Args:
        tokenizer: `SentencePieceTokenizer` (written to `name.model`) or `SubwordTokenizer`
            (`name.txt`).
        directory: the folder, created if it does not exist.
        name: file name without its ending.

    Returns:
        Path of the file.

    Raises:
        UserError: if there is a file with the name of the other kind that is not a tokenizer.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import SubwordTokenizer, load_tokenizer, save_tokenizer
    >>> directory = tempfile.mkdtemp()
    >>> save_tokenizer(SubwordTokenizer(["a", "b"]), directory).name
    'tokenizer.txt'
    >>> load_tokenizer(directory).encode("b a")
    [5, 4]
    """
    obsolete = other_kind_files(tokenizer, directory, name)
    path = tokenizer.save(directory, name)
    for other in obsolete:
        other.unlink(missing_ok=True)
    return path


def other_kind_files(
    tokenizer: Tokenizer, directory: str | os.PathLike, name: str
) -> list[pathlib.Path]:
    """Returns the tokenizers of the other kind that `load_tokenizer` would find too.

    Raises:
        UserError: if such a file is not a tokenizer, so that it must not be removed.
    """
    paths = [
        pathlib.Path(directory) / f"{name}{kind.suffix}"
        for kind in _KINDS
        if not isinstance(tokenizer, kind)
    ]
    for path in paths:
        if path.is_file() and not _is_tokenizer(path):
            raise UserError(
                f"{str(path)!r} is in the way and not a tokenizer that can be replaced: move it "
                "away, or name another directory."
            )
    return [path for path in paths if path.is_file()]


def tokenizer_files(directory: str | os.PathLike, name: str) -> list[pathlib.Path]:
    """Returns the files of a name that are tokenizers of either kind."""
    paths = [pathlib.Path(directory) / f"{name}{kind.suffix}" for kind in _KINDS]
    return [path for path in paths if path.is_file() and _is_tokenizer(path)]


def _is_tokenizer(path: pathlib.Path) -> bool:
    try:
        _load_file(path)
    except UserError:
        return False
    return True


def load_tokenizer(directory: str | os.PathLike, name: str = "tokenizer") -> Tokenizer:
    """Reads the tokenizer that `save_tokenizer` wrote.

    Args:
        directory: the folder.
        name: file name without its ending.

    Returns:
        `SentencePieceTokenizer` or `SubwordTokenizer`, by the file that is there.

    Raises:
        UserError: if there is no such file, or it is damaged.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import SubwordTokenizer, load_tokenizer, save_tokenizer
    >>> directory = tempfile.mkdtemp()
    >>> path = save_tokenizer(SubwordTokenizer(["a", "b"]), directory, name="source")
    >>> load_tokenizer(directory, name="source").vocab_size
    6
    """
    directory = pathlib.Path(directory)
    paths = [directory / f"{name}{kind.suffix}" for kind in _KINDS]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        names = " or ".join(path.name for path in paths)
        number = "both" if found else "neither"
        raise UserError(f"A tokenizer is one file, {names}: {str(directory)!r} has {number}.")
    return _load_file(found[0])


def _load_file(path: pathlib.Path) -> Tokenizer:
    content = path.read_bytes()
    try:
        if path.suffix == SentencePieceTokenizer.suffix:
            return SentencePieceTokenizer(content)
        return SubwordTokenizer.from_file_content(content)
    except UserError as error:
        raise UserError(f"{str(path)!r} cannot be loaded: {error}") from error
