"""Saving and loading a tokenizer of either kind."""

import os
import pathlib

from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_transformer.data.subword_tokenizer import SubwordTokenizer
from keras_transformer.errors import UserError

Tokenizer = SentencePieceTokenizer | SubwordTokenizer

_KINDS = (SentencePieceTokenizer, SubwordTokenizer)


def save_tokenizer(
    tokenizer: Tokenizer, directory: str | os.PathLike, name: str = "tokenizer"
) -> pathlib.Path:
    """Writes a tokenizer where `load_tokenizer` finds it.

    Args:
        tokenizer: `SentencePieceTokenizer` (written to `name.model`) or `SubwordTokenizer`
            (`name.txt`).
        directory: the folder, made if need be.
        name: file name without its ending.

    Returns:
        `pathlib.Path` of the file.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import SubwordTokenizer, load_tokenizer, save_tokenizer
    >>> directory = tempfile.mkdtemp()
    >>> save_tokenizer(SubwordTokenizer(["a", "b"]), directory).name
    'tokenizer.txt'
    >>> load_tokenizer(directory).encode("b a")
    [5, 4]
    """
    path = tokenizer.save(directory, name)
    for kind in _KINDS:
        # A tokenizer of the other kind that was here before would be found as well.
        if not isinstance(tokenizer, kind):
            (pathlib.Path(directory) / f"{name}{kind.suffix}").unlink(missing_ok=True)
    return path


def load_tokenizer(directory: str | os.PathLike, name: str = "tokenizer") -> Tokenizer:
    """Reads the tokenizer that `save_tokenizer` wrote.

    Args:
        directory: the folder.
        name: file name without its ending.

    Returns:
        `SentencePieceTokenizer` or `SubwordTokenizer`, by the file that is there.

    Raises:
        UserError: if there is no such file, or it is damaged.
    """
    directory = pathlib.Path(directory)
    paths = [directory / f"{name}{kind.suffix}" for kind in _KINDS]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        names = " or ".join(path.name for path in paths)
        number = "both" if found else "neither"
        raise UserError(f"A tokenizer is one file, {names}: {str(directory)!r} has {number}.")
    content = found[0].read_bytes()
    try:
        if found[0].suffix == SentencePieceTokenizer.suffix:
            return SentencePieceTokenizer(content)
        return SubwordTokenizer.from_file_content(content)
    except UserError as error:
        raise UserError(f"{str(found[0])!r} cannot be loaded: {error}") from error
