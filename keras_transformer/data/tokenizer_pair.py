"""The tokenizers of the source and of the target language, and the files of tokenizers."""

import os
import pathlib
from typing import NamedTuple

from keras_transformer.data.lookup_tokenizers import MappedTokenizer, SubwordTokenizer
from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.files import current_file, read_small_file
from keras_transformer.layouts import SEPARATE_TOKENIZERS, SHARED_TOKENIZER

_KINDS = (SentencePieceTokenizer, SubwordTokenizer, MappedTokenizer)
# Empty pieces take two bytes in a file and some 80 in memory.
LARGEST_VOCABULARY = 2**26


class TokenizerPair(NamedTuple):
    """The tokenizers of a model: one for each language, or one that both languages share."""

    source: Tokenizer
    target: Tokenizer | None = None  # None if both languages share `source`

    @property
    def is_shared(self) -> bool:
        return self.target is None

    @property
    def have_same_ids(self) -> bool:
        """Whether an id is the same piece in both languages."""
        source, target = self.source, self.of_target
        sizes = source.vocab_size, target.vocab_size
        return self.is_shared or source.pieces(range(sizes[0])) == target.pieces(range(sizes[1]))

    @property
    def of_target(self) -> Tokenizer:
        """The tokenizer that the target uses, shared or not."""
        return self.source if self.target is None else self.target

    @property
    def sizes(self) -> tuple[int, int | None]:
        """The vocabulary sizes of source and target; None for a shared target."""
        return self.source.vocab_size, None if self.target is None else self.target.vocab_size

    def save(self, directory: str | os.PathLike) -> list[pathlib.Path]:
        """Writes `tokenizer.*`, or both `source_tokenizer.*` and `target_tokenizer.*`."""
        return [save_tokenizer(one, directory, name) for name, one in self.by_name().items()]

    @classmethod
    def load(cls, directory: str | os.PathLike, is_shared: bool = True) -> "TokenizerPair":
        """Reads what `save` wrote; raises a `UserError` if a file is missing or damaged."""
        names = (SHARED_TOKENIZER,) if is_shared else SEPARATE_TOKENIZERS
        return cls(*(load_tokenizer(directory, name) for name in names))

    def obsolete_files(self, directory: str | os.PathLike) -> list[pathlib.Path]:
        """Returns the tokenizer files of a folder that this pair's files would not overwrite."""
        ours, names = self.by_name(), (SHARED_TOKENIZER, *SEPARATE_TOKENIZERS)
        return [file for name in names for file in _obsolete(directory, name, ours.get(name))]

    def by_name(self) -> dict[str, Tokenizer]:
        """Returns the tokenizers by the name of their file."""
        if self.target is None:
            return {SHARED_TOKENIZER: self.source}
        return dict(zip(SEPARATE_TOKENIZERS, (self.source, self.target), strict=True))


def save_tokenizer(
    tokenizer: Tokenizer, directory: str | os.PathLike, name: str = "tokenizer"
) -> pathlib.Path:
    """Writes a tokenizer for `load_tokenizer`; one of another kind with this name is removed.

    Args:
        tokenizer: `SentencePieceTokenizer` (`name.model`), `SubwordTokenizer` (`name.txt`) or
            `MappedTokenizer` (`name.json`).
        directory, name: As in the tokenizer's `save`.

    Returns:
        Path of the file.

    Raises:
        UserError: If there is a file of this name with the other suffix that is not a tokenizer.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import SubwordTokenizer, load_tokenizer, save_tokenizer
    >>> directory = tempfile.mkdtemp()
    >>> save_tokenizer(SubwordTokenizer(["a", "b"]), directory).name
    'tokenizer.txt'
    >>> load_tokenizer(directory).encode("b a")
    [5, 4]
    """
    obsolete = _obsolete(directory, name, tokenizer)
    path = tokenizer.save(directory, name)
    for other in obsolete:
        other.unlink(missing_ok=True)
    return path


def load_tokenizer(directory: str | os.PathLike, name: str = "tokenizer") -> Tokenizer:
    """Returns the tokenizer that `save_tokenizer` wrote; the file's suffix determines its kind.

    Args:
        directory, name: As in `save_tokenizer`.

    Raises:
        UserError: If there is no such file, there are several kinds, or it is damaged.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import SubwordTokenizer, load_tokenizer
    >>> path = SubwordTokenizer(["a", "b"]).save(tempfile.mkdtemp(), name="source")
    >>> load_tokenizer(path.parent, name="source").vocab_size
    6
    """
    paths = _files(directory, name)
    if len(paths) != 1:
        names = " or ".join(f"{name}{kind.suffix}" for kind in _KINDS)
        number = "several" if paths else "none"
        raise UserError(f"A tokenizer is one file, {names}: {str(directory)!r} has {number}.")
    return load_tokenizer_file(paths[0])


def _obsolete(directory, name, tokenizer: Tokenizer | None) -> list[pathlib.Path]:
    """Returns the tokenizer files to remove once `tokenizer`, or none, is saved under `name`."""
    paths = []
    for path in _files(directory, name):
        if tokenizer is not None and path.suffix == tokenizer.suffix:
            continue
        try:
            load_tokenizer_file(path)
            paths.append(path)
        except UserError as error:
            if tokenizer is not None:  # Otherwise nothing reads the name, and the file may stay.
                rule = "is in the way and not a tokenizer that can be replaced"
                advice = "move it away, or name another directory."
                raise UserError(f"{str(path)!r} {rule}: {advice}") from error
    return paths


def _files(directory, name) -> list[pathlib.Path]:
    paths = [current_file(directory, f"{name}{kind.suffix}") for kind in _KINDS]
    return [path for path in paths if path.is_file()]


def load_tokenizer_file(path: pathlib.Path) -> Tokenizer:
    """Returns the tokenizer in a file, of the kind that its suffix says."""
    try:
        content = read_small_file(path, LARGEST_VOCABULARY)
        if path.suffix == SentencePieceTokenizer.suffix:
            return SentencePieceTokenizer(content)
        kind = MappedTokenizer if path.suffix == MappedTokenizer.suffix else SubwordTokenizer
        return kind.from_file_content(content)
    except ValueError as error:
        raise UserError(f"{str(path)!r} cannot be loaded: {error}") from error
