"""Lines of UTF-8 text, from files (plain or gzip), from memory or from a corpus."""

import codecs
import functools
import gzip
import itertools
import os
import pathlib
import random
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

from keras_transformer.errors import UserError
from keras_transformer.files import require_file

# Maximum number of bytes of a line. A small gzip file can hold one that does not fit into memory.
LONGEST_LINE = 2**22
_BYTE_ORDER_MARK = "\ufeff"
# UTF-32 first: its mark begins with the mark of UTF-16.
_OTHER_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


def text_lines(files_or_lines: str | os.PathLike | Iterable) -> Iterator[str]:
    """Yields lines of text from files, an iterable of lines, or a corpus of pairs.

    Args:
        files_or_lines: A path of a plain or `.gz` text file; or an iterable of `pathlib.Path`
            (files), `str` (lines, not paths), or tuples of `str` (pairs, as of a corpus).

    Raises:
        UserError: For a missing, damaged or not UTF-8 file.
        TypeError: For items of another type.

    Example:

    >>> from keras_transformer.data import PairsCorpus, text_lines
    >>> list(text_lines(PairsCorpus([("one", "eins"), ("two", "zwei")])))
    ['one', 'eins', 'two', 'zwei']
    """
    if isinstance(files_or_lines, (str, os.PathLike)):
        files_or_lines = [pathlib.Path(files_or_lines)]
    for item in files_or_lines:
        if isinstance(item, str):
            yield item
        elif isinstance(item, pathlib.PurePath):
            yield from open_text(item)
        elif isinstance(item, tuple):
            yield from item
        else:
            rule = (
                "Text is taken from str (a line), pathlib.Path (a file) or tuples of str (a pair)"
            )
            raise TypeError(f"{rule}. Received: {item=} of type {type(item).__name__}")


def sample_lines(lines: Iterable[str], max_lines: int, seed: int) -> list[str]:
    """Returns a uniform random sample of at most `max_lines` lines (reservoir sampling).

    If there are no more lines than that, all are returned in order. Only the sample is in memory.
    """
    lines = iter(lines)
    kept = list(itertools.islice(lines, max_lines))
    generator = random.Random(seed)
    for count, line in enumerate(lines, start=max_lines + 1):
        slot = generator.randrange(count)
        if slot < max_lines:
            kept[slot] = line
    return kept


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
        where = f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
        rule = "the text is not valid UTF-8"
        raise UserError(f"{name}, line {number}: {rule} ({where}).") from error
    return line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
