"""Corpora in memory, in files and of tensorflow-datasets; lines of UTF-8 text files."""

import abc
import codecs
import functools
import gzip
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Protocol, runtime_checkable

from keras_transformer.errors import UserError, did_you_mean
from keras_transformer.files import require_file

# Maximum number of bytes of a line. A small gzip file can hold one that does not fit into memory.
LONGEST_LINE = 2**22
_BYTE_ORDER_MARK = "\ufeff"
# UTF-32 first: its mark begins with the mark of UTF-16.
_OTHER_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


@runtime_checkable
class Corpus(Protocol):
    """A corpus: each `iter(corpus)` yields all pairs of `str`, in a fixed order.

    `len(corpus)` is optional, and raises `TypeError` if the number is not known.

    Example:

    >>> from keras_transformer.data import Corpus
    >>> class Squares:
    ...     def __iter__(self):
    ...         return ((str(number), str(number**2)) for number in range(4))
    >>> isinstance(Squares(), Corpus), list(Squares())[3]
    (True, ('3', '9'))
    """

    def __iter__(self) -> Iterator[tuple[str, str]]: ...


class PairsCorpus:
    """Sentence pairs in memory.

    Args:
        pairs: Sequence of `(source, target)`, both `str`.

    Raises:
        UserError: If there is no pair.

    Example:

    >>> corpus = keras_transformer.data.PairsCorpus([("one", "eins"), ("two", "zwei")])
    >>> len(corpus), next(iter(corpus))
    (2, ('one', 'eins'))
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self._pairs = [(source, target) for source, target in pairs]
        if not self._pairs:
            raise UserError("The corpus has no sentence pairs.")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


class _FileCorpus(abc.ABC):
    """A corpus whose number of pairs is known after one pass."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    def __len__(self) -> int:
        return self._num_pairs

    @functools.cached_property
    def _num_pairs(self) -> int:
        return sum(1 for _ in self)


class ParallelTextCorpus(_FileCorpus):
    """Two text files whose lines with the same number are a pair; `.gz` is unpacked.

    Args:
        source_path, target_path: UTF-8 text files with equally many lines, one sentence per line,
            which may be empty.

    Raises:
        UserError: At once, if a file is missing or a pipe; while reading, if a file is empty, the
            numbers of lines differ, or a line is not valid UTF-8.

    Example:

    >>> import pathlib
    >>> source, target = pathlib.Path("train.en"), pathlib.Path("train.de")
    >>> source.write_text("one\\ntwo\\n"), target.write_text("eins\\nzwei\\n")
    (8, 10)
    >>> list(keras_transformer.data.ParallelTextCorpus(source, target))
    [('one', 'eins'), ('two', 'zwei')]
    """

    def __init__(self, source_path: str | os.PathLike, target_path: str | os.PathLike):
        self.source_path = require_file(source_path, is_reread=True)
        self.target_path = require_file(target_path, is_reread=True)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        names = repr(str(self.source_path)), repr(str(self.target_path))
        files = open_text(self.source_path), open_text(self.target_path)
        count = 0
        for pair in itertools.zip_longest(*files):
            if pair[0] is None or pair[1] is None:
                numbers = [
                    count + (line is not None) + sum(1 for _ in rest)
                    for line, rest in zip(pair, files, strict=True)
                ]
                if 0 in numbers:
                    raise UserError(f"{names[numbers.index(0)]} is empty.")
                found = f"{names[0]} has {numbers[0]}, {names[1]} has {numbers[1]}"
                raise UserError(f"Parallel files must have the same number of lines: {found}.")
            count += 1
            yield pair
        if not count:
            raise UserError(f"{names[0]} and {names[1]} are empty.")


class TsvCorpus(_FileCorpus):
    """One text file with tab-separated columns, two of which form the pair; `.gz` is unpacked.

    Args:
        path: UTF-8 text file. Quotes have no meaning; blank lines give a pair of empty texts.
        source_column, target_column: The columns with both texts: indices from 0, or names in the
            first line, which then is not a pair.

    Raises:
        UserError: At once, if the file is missing or a pipe; while reading, if it is empty, the
            first line lacks a name, a line has too few columns or is not valid UTF-8.
        ValueError: If a column is negative, or both are the same.

    Example:

    >>> import pathlib
    >>> path = pathlib.Path("pairs.tsv")
    >>> _ = path.write_text("one\\teins\\ntwo\\tzwei\\n")
    >>> list(keras_transformer.data.TsvCorpus(path, source_column=1, target_column=0))
    [('eins', 'one'), ('zwei', 'two')]
    """

    def __init__(
        self, path: str | os.PathLike, source_column: int | str = 0, target_column: int | str = 1
    ):
        names = source_column, target_column
        if source_column == target_column or any(isinstance(n, int) and n < 0 for n in names):
            rule = "source_column and target_column must be two different names, or indices from 0"
            raise ValueError(f"{rule}. Received: {source_column=}, {target_column=}")
        self.path = require_file(path, is_reread=True)
        self.source_column = source_column
        self.target_column = target_column

    def __iter__(self) -> Iterator[tuple[str, str]]:
        number, header, lines = 0, [""], enumerate(open_text(self.path), start=1)
        names = self.source_column, self.target_column
        if any(isinstance(name, str) for name in names):
            header = next(lines, (0, ""))[1].split("\t")
        source, target = (self._index(name, header) for name in names)
        if source == target:
            rule = f"Source and target must be two columns of {str(self.path)!r}"
            raise UserError(f"{rule}. Received: {names[0]!r} and {names[1]!r}, which are the same")
        needed = max(source, target) + 1
        for number, line in lines:
            columns = line.split("\t")
            if len(columns) >= needed:
                yield columns[source], columns[target]
            elif not line.strip():
                yield "", ""
            else:
                raise UserError(
                    f"{str(self.path)!r}, line {number}: expected at least {needed} columns "
                    f"separated by tabs, found {len(columns)}."
                )
        if not number:
            raise UserError(f"{str(self.path)!r} is empty.")

    def _index(self, column, header):
        if isinstance(column, str) and column not in header:
            rule = f"The first line of {str(self.path)!r} has no column {column!r}"
            rule += did_you_mean(column, header) + "; without names there, give numbers"
            line = " | ".join(header)
            line = line if len(line) <= 60 else line[:60] + "..."
            raise UserError(f"{rule}. Received: the line {line!r}")
        return header.index(column) if isinstance(column, str) else column


class TfdsCorpus:
    """A translation set of tensorflow-datasets, in either direction.

    Each example must have the text of both languages under their codes, either directly, such as
    `{"de": ..., "en": ...}` of `wmt14_translate/de-en`, or in one nested feature.

    Args:
        name: `"set"`, `"set/config"` or `"set/config:version"`.
        split: TFDS split or expression, e.g. `"train"` or `"train[:1%]+validation"`.
        source_language, target_language: Names of the text features, such as `"en"` and `"de"`.
        data_dir: Folder of prepared sets; `None`: the default of TFDS (`~/tensorflow_datasets`).
        download: Whether to download and prepare the set if it is not in `data_dir`.

    Raises:
        UserError: If the set is not available, the split is unknown or empty, a language is
            unknown, or both languages are equal; while reading, if a text is not valid UTF-8.

    Example:

    >>> corpus = keras_transformer.data.TfdsCorpus(  # doctest: +SKIP
    ...     "wmt14_translate/de-en", "validation", source_language="en", target_language="de"
    ... )
    >>> source, target = next(iter(corpus))  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        split: str,
        source_language: str,
        target_language: str,
        data_dir: str | os.PathLike | None = None,
        download: bool = True,
    ):
        self.name, self.split = name, split
        self.source_language, self.target_language = source_language, target_language
        if source_language == target_language:
            rule = "source_language and target_language must differ"
            raise UserError(f"{rule}. Received: {source_language=}, {target_language=}")
        self._builder = _prepared_builder(name, data_dir, download)
        self._path = _path_to_languages(self._builder, name, (source_language, target_language))
        splits = self._builder.info.splits
        try:
            self._num_pairs = splits[split].num_examples
        except Exception as error:  # The type depends on the mistake.
            known = ", ".join(sorted(splits))
            raise UserError(f"{name!r} has no split {split!r}: it has {known}.") from error
        if not self._num_pairs:
            raise UserError(f"The split {split!r} of {name!r} is empty.")

    def __len__(self) -> int:
        return self._num_pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        import tensorflow_datasets as tfds

        one_reader = tfds.ReadConfig(interleave_cycle_length=1)  # The order of the pairs is fixed.
        dataset = self._builder.as_dataset(
            split=self.split, shuffle_files=False, read_config=one_reader
        )
        for number, example in enumerate(tfds.as_numpy(dataset)):
            for key in self._path:
                example = example[key]
            try:
                source = example[self.source_language].decode("utf-8")
                target = example[self.target_language].decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"Example {number} of {self.name!r}, split {self.split!r}, is not valid UTF-8."
                ) from error
            # A line end inside a text would break every line-based file written from it.
            yield source.replace("\n", " "), target.replace("\n", " ")


def _prepared_builder(name, data_dir, download):
    import tensorflow_datasets as tfds

    problem = f"tensorflow-datasets cannot find the data set {name!r}"
    try:
        builder = tfds.builder(name, data_dir=None if data_dir is None else os.fspath(data_dir))
        if download:
            problem = f"The data set {name!r} could not be downloaded"
            builder.download_and_prepare()
    except Exception as error:  # several types: the name, network, disk, checksums
        lines = [type(error).__name__, *str(error).strip().splitlines()]
        raise UserError(f"{problem}: {': '.join(lines[:2]).strip()}") from error
    if not download and not builder.info.splits:
        folder = repr(str(builder.data_dir))
        raise UserError(
            f"The data set {name!r} is not prepared in {folder}, and downloads are off."
        )
    return builder


def _path_to_languages(builder, name, languages):
    """Returns the keys that lead to the languages in an example: none, or one nested feature."""
    features = builder.info.features
    nested = {(key,): feature for key, feature in features.items() if hasattr(feature, "keys")}
    candidates = {(): features, **nested}
    for path, feature in candidates.items():
        if all(language in feature for language in languages):
            return path
    available = sorted({key for feature in candidates.values() for key in feature})
    raise UserError(
        f"{name!r} has no pair {languages[0]!r} - {languages[1]!r}: "
        f"its features are {', '.join(available)}."
    )


def open_text(path: str | os.PathLike) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file, without their line ends; `.gz` is unpacked.

    A line ends at `\\n` (and `\\r\\n`) only, not at other separators that `str.splitlines` knows
    (U+2028, form feed): parallel files stay parallel. A byte order mark at the start is left out. A
    `UserError` names the file that is missing, and the line that is not UTF-8.
    """
    path = require_file(path)
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, raw in enumerate(raw_lines(file), start=1):
                yield decode_line(raw, repr(str(path)), number)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{str(path)!r} is not a complete gzip file: {error}") from error
    except PermissionError as error:
        raise UserError(f"{str(path)!r} cannot be read: permission denied.") from error


def raw_lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """Yields the lines of a binary stream; of one that is too long, only the beginning."""
    # Iteration over a pipe reads ahead, `readline` does not.
    return iter(functools.partial(file.readline, LONGEST_LINE + 1), b"")


def decode_line(raw: bytes, name: str, number: int) -> str:
    """Returns a UTF-8 line without its line end; errors contain `name` and `number` (from 1)."""
    if len(raw) > LONGEST_LINE:
        raise UserError(f"{name}, line {number}: the line is longer than {LONGEST_LINE:,} bytes.")
    if number == 1:
        others = [encoding for encoding, marks in _OTHER_MARKS.items() if raw.startswith(marks)]
        # Without a mark, Latin letters show: every second byte is zero.
        if others or raw.count(0) * 3 > len(raw):
            other = others[0] if others else "UTF-16"
            rule = f"{name}: the text must be UTF-8; `iconv -f {other} -t UTF-8` converts it"
            raise UserError(f"{rule}. Received: {other}")
    try:
        line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{error.object[error.start]:02x}"
        rule = "the text is not valid UTF-8"
        raise UserError(f"{name}, line {number}: {rule} ({where}).") from error
    return line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def line_chunks(lines: Iterable, max_lines: int, max_characters: int) -> Iterator[list]:
    """Yields lists of `max_lines` lines, or tuples of lines; fewer where the lines are long."""
    chunk, room = [], max_characters
    for line in lines:
        chunk.append(line)
        room -= len(line) if isinstance(line, str) else sum(map(len, line))
        if len(chunk) == max_lines or room <= 0:
            yield chunk
            chunk, room = [], max_characters
    if chunk:
        yield chunk
