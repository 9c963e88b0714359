"""Reads and writes lines of strict UTF-8, in files or standard streams."""

import contextlib
import gzip
import io
import os
import pathlib
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write

# Files of a model directory that commands read. An output may replace other files in it.
_MODEL_FILES = (
    *("config.json", "recipe.json", "training.json"),
    *("*.weights.h5", "*tokenizer.*", "shortlist.npz"),
)
# Maximum number of characters in a chunk of lines; their ids take some 100 bytes for each.
_CHUNK_CHARACTERS = 2**22


def read_lines(path: str | None) -> Iterator[str]:
    """Returns the lines of a UTF-8 file, like `open_text`; None and `"-"` are standard input."""
    from keras_transformer.data.lines import decode_line, open_text, raw_lines

    if path not in (None, "-"):
        return open_text(path)
    numbered = enumerate(raw_lines(sys.stdin.buffer), start=1)
    return (decode_line(raw, "standard input", number) for number, raw in numbered)


def read_all_lines(path: str, what: str) -> list[str]:
    """Returns the lines of a file; raises a `UserError` about the `what` file if it is empty."""
    lines = list(read_lines(path))
    if not lines:
        raise UserError(f"The {what} file {path!r} is empty.")
    return lines


def require_same_length(files: Iterable[tuple[str, list[str]]]) -> None:
    """Raises a `UserError` unless all files (name and lines) have the same number of lines."""
    (first, lines), *others = files
    for name, other in others:
        if len(other) != len(lines):
            raise UserError(
                f"Parallel files must have the same number of lines. "
                f"Received: {first!r} with {len(lines):,} and {name!r} with {len(other):,}."
            )


def chunks(lines: Iterable[str | tuple[str, ...]], size: int) -> Iterator[list]:
    """Yields lists of `size` lines, or tuples of lines; fewer at the end and of long lines."""
    from keras_transformer.data.encoded_corpus import line_chunks

    return line_chunks(lines, size, _CHUNK_CHARACTERS)


def as_line(text: str) -> str:
    """Returns text on one line; a line break in an answer would shift the lines after it."""
    return text.replace("\r", " ").replace("\n", " ")


def check_output(path: str | None, others: Iterable[str | None] = ()) -> None:
    """Raises a `UserError` if an output cannot be written; called before the work, not after it.

    The output must not be one of the `others`: files and model directories that the command also
    reads or writes. None among them is ignored.
    """
    identity = _identity(path, sys.stdout)
    for other in others:
        files = [] if other is None else [pathlib.Path(other)]
        if files and files[0].is_dir():
            files = [file for name in _MODEL_FILES for file in files[0].glob(name)]
        if identity and identity in (_identity(file, sys.stdin) for file in files):
            raise UserError(
                "The output must not be a file that the command also reads or writes. "
                f"Received: {path or '-'!r}, which is the same file as {other!r}."
            )
    if path in (None, "-"):
        return
    target = pathlib.Path(os.path.realpath(path))  # a link stays, its file is written
    if target.is_dir():
        raise UserError(f"The output must be a file. Received a folder: {path!r}.")
    if not target.parent.is_dir() and not _is_special(path):
        raise UserError(f"The folder of the output does not exist. Received: {path!r}.")
    if not os.access(path if _is_special(path) else target.parent, os.W_OK):
        raise UserError(f"The output cannot be written (permission denied). Received: {path!r}.")


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Opens an output for UTF-8 text; a file gets its name only when it is complete."""
    if path in (None, "-"):
        # Answers are UTF-8 in every locale. In tests, the stream may not have this method.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        sys.stdout.flush()
        return
    check_output(path)
    target = pathlib.Path(path)
    # A device or a named pipe must not be replaced by a file.
    place = (
        contextlib.nullcontext(target)
        if _is_special(target)
        else atomic_write(os.path.realpath(path))
    )
    try:
        with place as temporary, open(temporary, "wb") as file:
            is_packed = target.name.endswith(".gz")
            packed = gzip.GzipFile(target.name, "wb", fileobj=file) if is_packed else file
            with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
                yield text
    except OSError as error:
        if error.errno is not None and error.filename in (None, os.path.realpath(path)):
            error.filename = path  # the error of a full device names no file
        raise


def _identity(path: str | pathlib.Path | None, stream: TextIO) -> tuple | str | None:
    """Returns a value that is the same for all names of a file, or None for a special file."""
    try:
        status = os.stat(stream.fileno() if path is None or str(path) == "-" else path)
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        return os.path.realpath(path or "")  # an output that does not exist yet
    except (OSError, ValueError, AttributeError):
        return None  # a closed stream, or a stream in a test


def _is_special(path: str | os.PathLike) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
