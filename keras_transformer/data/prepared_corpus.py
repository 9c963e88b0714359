"""`PreparedCorpus`: pairs that were encoded once, as flat arrays on the disk and a description."""

import contextlib
import dataclasses
import json
import os
import pathlib
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from keras_transformer.data.corpora import PairsCorpus
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.mixed_corpus import Mixture
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError, one_line
from keras_transformer.files import read_json
from keras_transformer.layouts import (
    CORPUS_ARRAYS,
    DESCRIPTION_FILE,
    SEPARATE_TOKENIZERS,
    SHARED_TOKENIZER,
    TOKENIZER_FILES,
    VALID_TEXT_FILE,
)

FORMAT = 2
_LONGEST_ROW = 2**16 - 1
_AGAIN = "prepare the corpus again."
_BYTES_AT_ONCE = 2**22


@dataclasses.dataclass(frozen=True)
class PreparedSplit:
    """The description of the training or validation pairs of a prepared corpus."""

    pairs: int
    dropped_long: int  # left out because a side was too long
    dropped_empty: int
    tokens: dict[str, int]  # number of ids by side: "source", with EOS, and "target", without
    checksums: dict[str, int]  # of the files, by the name of the array
    mixture: Mixture | None = None  # of the corpora, in JSON a dict

    def __post_init__(self):
        if self.checksums.keys() != set(CORPUS_ARRAYS):
            raise ValueError(f"an array has a wrong name. Received: {list(self.checksums)}")
        if isinstance(self.mixture, dict):
            object.__setattr__(self, "mixture", Mixture(**self.mixture))
        if self.mixture is not None and sum(self.mixture.sizes) != self.pairs:
            raise ValueError("the corpora do not have the number of pairs")

    @property
    def num_read(self) -> int:
        return self.pairs + self.dropped_long + self.dropped_empty


@dataclasses.dataclass(frozen=True)
class PreparedCorpus:
    """A directory that `prepare_corpus` wrote, to train from without the text.

    Attributes:
        directory: `pathlib.Path`.
        source_tokenizer, target_tokenizer: The second is None if both languages share the first.
        max_length: Maximum number of tokens of a sentence, EOS counted; longer pairs are left out.
        splits: Dict of `PreparedSplit`, for `"train"`, and `"valid"` if there is validation text.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import PreparedCorpus, SubwordTokenizer, prepare_corpus
    >>> directory, pairs = tempfile.mkdtemp(), [("a b", "c"), ("b", "a a a")]
    >>> _ = prepare_corpus(directory, pairs, None, SubwordTokenizer(["a", "b", "c"]))
    >>> prepared = PreparedCorpus.load(directory)
    >>> len(prepared.read("train")), prepared.max_length, prepared.valid_text
    (2, 256, None)
    """

    directory: pathlib.Path
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer | None
    max_length: int
    splits: dict[str, PreparedSplit]

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "PreparedCorpus":
        """Returns the prepared corpus of a directory, without the ids.

        Args:
            directory: As `prepare_corpus` wrote it.

        Raises:
            UserError: If it is not a prepared corpus, has another format, or is incomplete.
        """
        directory = pathlib.Path(directory)
        max_length, checksums, splits = _read_description(directory)
        for name, split in splits.items():
            _open(directory / name, split)
        for name, expected in checksums.items():
            path = directory / name
            if not path.is_file() or checksum(path) != expected:
                problem = "is not the file that was written with the corpus"
                raise UserError(f"{str(path)!r} {problem}: {_AGAIN}")
        is_shared = len(TOKENIZER_FILES & checksums.keys()) == 1
        return cls(directory, *TokenizerPair.load(directory, is_shared), max_length, splits)

    def read(self, split: str = "train") -> EncodedCorpus:
        """Returns the `EncodedCorpus` of a split, whose arrays stay on the disk.

        Args:
            split: `"train"` or `"valid"`.

        Raises:
            UserError: If there is no such split, or an array is damaged.
        """
        if split not in self.splits:
            raise UserError(f"{str(self.directory)!r} has no {split!r} text.")
        folder, description = self.directory / split, self.splits[split]
        for name, expected in description.checksums.items():
            if checksum(path := folder / f"{name}.npy") != expected:
                raise UserError(f"The array {str(path)!r} is damaged: {_AGAIN}")
        encoded = _open(folder, description)
        tokenizers = self.source_tokenizer, self.target_tokenizer or self.source_tokenizer
        lengths = encoded.source_lengths, encoded.target_lengths
        for (ids, _), of_side, tokenizer in zip(encoded.sides(), lengths, tokenizers, strict=True):
            problem = None
            # On a GPU, TensorFlow reads a missing row of an embedding as zeros.
            if not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
                problem = "ids that are not in the vocabulary"
            elif not 2 <= of_side.min() <= of_side.max() <= self.max_length:
                problem = f"sentences of other lengths than 2 to {self.max_length}"
            if problem:
                problem = f"the {split!r} arrays have {problem}"
                raise UserError(f"{str(self.directory)!r} is damaged: {problem}.")
        encoded.num_dropped_long = description.dropped_long
        encoded.num_dropped_empty = description.dropped_empty
        encoded.mixture = description.mixture
        return encoded

    @property
    def valid_text(self) -> PairsCorpus | None:
        """The raw text of the validation pairs, or None if there is none."""
        if "valid" not in self.splits:
            return None
        text = (self.directory / VALID_TEXT_FILE).read_text(encoding="utf-8")
        return PairsCorpus([json.loads(line) for line in text.split("\n")[:-1]])


def _open(folder, split) -> EncodedCorpus:
    encoded = map_arrays(folder)
    if (len(encoded), encoded.num_tokens) != (split.pairs, split.tokens):
        problem = "do not have the number of pairs and tokens that were written"
        raise UserError(f"The arrays in {str(folder)!r} {problem}: {_AGAIN}")
    return encoded


def _read_description(directory):
    """Returns the maximal length, the checksums of tokenizers and text, and the splits."""
    path, name = directory / DESCRIPTION_FILE, repr(str(directory))
    if not path.is_file():
        raise UserError(f"{name} is not a prepared corpus: it has no {DESCRIPTION_FILE}.")
    content = read_json(path)
    if content.get("format") != FORMAT:
        problem = f"has format {one_line(ValueError(repr(content.get('format'))))}"
        raise UserError(f"{name} {problem}, this version reads {FORMAT}: {_AGAIN}")
    try:
        splits = {name: PreparedSplit(**split) for name, split in content["splits"].items()}
        max_length, checksums = content["max_length"], content["files"]
        check_max_length(max_length)
        if splits.keys() not in ({"train"}, {"train", "valid"}):
            raise ValueError(f"other splits are expected. Received: {list(splits)}")
        names = {name.split(".")[0] for name in TOKENIZER_FILES & checksums.keys()}
        others = checksums.keys() - TOKENIZER_FILES
        is_complete = names in ({SHARED_TOKENIZER}, {*SEPARATE_TOKENIZERS})
        if not is_complete or others != ({VALID_TEXT_FILE} if "valid" in splits else set()):
            raise ValueError(f"other files are expected. Received: {list(checksums)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{str(path)!r} is damaged: {one_line(error)}.") from error
    return max_length, checksums, splits


def check_max_length(max_length: int) -> None:
    """Raises a `ValueError` unless a prepared corpus may have sentences of this length."""
    if type(max_length) is not int or not 1 <= max_length <= _LONGEST_ROW:
        raise ValueError(f"max_length must be from 1 to {_LONGEST_ROW}. Received: {max_length=}")


def write_arrays(folder: pathlib.Path, blocks: Iterable[EncodedCorpus], dtypes: Sequence) -> None:
    """Writes the blocks, one after the other, to a new folder; `dtypes` are those of the ids."""
    folder.mkdir(parents=True)
    dtypes = dtypes[0], np.int64, dtypes[1], np.int64
    with contextlib.ExitStack() as stack:
        source_ids, source_offsets, target_ids, target_offsets = (
            stack.enter_context(_ArrayFile(folder / f"{name}.npy", dtype))
            for name, dtype in zip(CORPUS_ARRAYS, dtypes, strict=True)
        )
        files = (source_ids, source_offsets), (target_ids, target_offsets)
        for _, offsets_file in files:
            offsets_file.append(np.zeros(1))
        for block in blocks:
            for (ids_file, offsets_file), (ids, offsets) in zip(files, block.sides(), strict=True):
                offsets_file.append(offsets[1:] + ids_file.size)
                ids_file.append(ids)


class _ArrayFile(contextlib.AbstractContextManager):
    """A flat `.npy` file that grows; NumPy leaves room for its size in the header."""

    def __init__(self, path: pathlib.Path, dtype):
        self.size, self._dtype = 0, np.dtype(dtype)
        self._file = open(path, "wb")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self.size += len(values)

    def __exit__(self, *exception):
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self):
        shape = {"shape": (self.size,), "fortran_order": False, "descr": self._dtype.str}
        np.lib.format.write_array_header_1_0(self._file, shape)


def map_arrays(folder: pathlib.Path) -> EncodedCorpus:
    """Returns the corpus in a folder, whose arrays are read when they are needed.

    Raises:
        UserError: If an array is missing or damaged, as far as its size tells.
    """
    path = folder
    try:
        arrays = []
        for name in CORPUS_ARRAYS:
            path = folder / f"{name}.npy"
            # TensorFlow takes no memory that is read-only; the file stays as it is.
            arrays.append(np.load(path, mmap_mode="c", allow_pickle=False))
            allowed = ("uint16", "int32") if name.endswith("ids") else ("int64",)
            if arrays[-1].ndim != 1 or arrays[-1].dtype not in allowed:
                raise ValueError("it is not an array of a prepared corpus")
        return EncodedCorpus(*arrays)
    except (OSError, ValueError, EOFError) as error:
        problem = "is missing, or was cut or changed"
        raise UserError(f"The array {str(path)!r} {problem} ({one_line(error)}).") from error


def checksum(path: pathlib.Path) -> int:
    """Returns the CRC-32 of a file."""
    result = 0
    with open(path, "rb") as file:
        while content := file.read(_BYTES_AT_ONCE):
            result = zlib.crc32(content, result)
    return result
