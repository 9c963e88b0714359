"""Lines in and out of the commands: strict UTF-8, standard streams or files, written aside."""

import contextlib
import gzip
import io
import itertools
import os
import pathlib
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO, TextIO

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write

# What is read of a model directory; an answer beside these may be replaced.
_MODEL_FILES = ("config.json", "recipe.json", "training.json", "*.weights.h5", "*tokenizer.*")


def read_lines(path: str | None) -> Iterator[str]:
    """Yields the lines of a UTF-8 file (`.gz` too), or of standard input.

    Args:
        path: the file; `None` or `"-"` reads standard input.

    Yields:
        `str`, one per line, without line ends and without a byte order mark at the start.

    Raises:
        UserError: if the file is missing, or a line is not UTF-8 (with the line's number).
    """
    from keras_transformer.data.text_lines import open_text

    if path is None or path == "-":
        return _decoded_lines(sys.stdin.buffer, "standard input")
    return open_text(path)


def _decoded_lines(file: BinaryIO, name: str) -> Iterator[str]:
    from keras_transformer.data.text_lines import decode_line

    # `readline`, since iterating over a pipe reads ahead and would hold back what is typed.
    for number, raw in enumerate(iter(file.readline, b""), start=1):
        yield decode_line(raw, name, number)


def read_all_lines(path: str, what: str) -> list[str]:
    """Reads a file that must not be empty.

    Args:
        path: the file.
        what: what it holds, for the error, e.g. `"reference"`.

    Returns:
        The lines.

    Raises:
        UserError: as `read_lines`, or if the file has no line.
    """
    lines = list(read_lines(path))
    if not lines:
        raise UserError(f"The {what} file {path!r} is empty.")
    return lines


def count_lines(path: str) -> int:
    """Counts the lines of an input, all of which are read for it.

    Args:
        path: a regular file.

    Returns:
        The number of lines.

    Raises:
        UserError: as `read_lines`, or if the file has no line.
    """
    count = sum(1 for _ in read_lines(path))
    if not count:
        raise UserError(f"The input file {path!r} is empty.")
    return count


def require_same_length(files: Iterable[tuple[str, list[str]]]) -> None:
    """Checks that files run in parallel.

    Args:
        files: pairs of name and lines.

    Raises:
        UserError: naming the first two files whose numbers of lines differ.
    """
    (first, lines), *others = files
    for name, other in others:
        if len(other) != len(lines):
            raise UserError(
                f"Parallel files must have the same number of lines. "
                f"Received: {first!r} with {len(lines):,} and {name!r} with {len(other):,}."
            )


def chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Splits lines into lists of `size`, the last one shorter.

    Args:
        lines: any lines.
        size: lines in a list.

    Yields:
        Lists of lines.
    """
    iterator = iter(lines)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def as_line(text: str) -> str:
    """Returns text on one line: a line break that a model writes would shift all that follow.

    Args:
        text: any text.

    Returns:
        The text with spaces for line breaks.
    """
    return text.replace("\r", " ").replace("\n", " ")


def check_output(path: str | None, others: Iterable[str | None] = ()) -> None:
    """Finds out before the work, not after it, that an output cannot be written.

    Args:
        path: the file; `None` or `"-"` is standard output.
        others: what else the command reads or writes: files, folders of models, `"-"` for standard
            input, None for nothing.

    Raises:
        UserError: if it is a folder, its folder is missing or cannot be written to, or it is one
            of the others, by whatever name.
    """
    for other in others:
        if other is not None and _is_same(path, other):
            raise UserError(
                "The output must not be a file that the command also reads or writes. "
                f"Received: {path or '-'!r}, which is the same file as {other!r}."
            )
    if path is None or path == "-":
        return
    target = pathlib.Path(os.path.realpath(path))  # of a link to a file, the file is written
    if target.is_dir():
        raise UserError(f"The output must be a file. Received a folder: {path!r}.")
    if not target.parent.is_dir() and not _is_special(path):
        raise UserError(f"The folder of the output does not exist. Received: {path!r}.")
    if not os.access(path if _is_special(path) else target.parent, os.W_OK):
        raise UserError(f"The output cannot be written (permission denied). Received: {path!r}.")


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Opens an output for UTF-8 text; a file appears under its name only when it is complete.

    Args:
        path: the file, packed if its name ends in `.gz`; `None` or `"-"` is standard output.

    Yields:
        A text stream with plain `\\n` line ends.
    """
    if path is None or path == "-":
        # Answers are UTF-8 whatever the locale says. A test's capture cannot be set, and need not.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        sys.stdout.flush()
        return
    check_output(path)
    target = pathlib.Path(path)
    if _is_special(target):
        # A device or a named pipe is written to; replacing it by a file would break the system.
        with _text_file(target, target.name) as file:
            yield file
        return
    temporary = None
    try:
        with atomic_write(target) as temporary:
            with _text_file(temporary, target.name) as file:
                yield file
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = path  # a full disk names no file
        raise


@contextlib.contextmanager
def _text_file(path: pathlib.Path, name: str) -> Iterator[TextIO]:
    """Opens a file to write, which is to have this name."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "wb"))
        if name.endswith(".gz"):
            file = stack.enter_context(gzip.GzipFile(name, "wb", fileobj=file))
        yield stack.enter_context(io.TextIOWrapper(file, encoding="utf-8", newline="\n"))


def _is_same(output: str | None, other: str) -> bool:
    """Whether an output is the other file, or a file of the other model directory."""
    output = _regular_file(output, sys.stdout)
    if pathlib.Path(other).is_dir():
        files = (path for name in _MODEL_FILES for path in pathlib.Path(other).glob(name))
    else:
        files = [_regular_file(other, sys.stdin)]
    return any(_are_same(output, file) for file in files if None not in (output, file))


def _regular_file(path: str | None, stream: TextIO):
    """Returns a path or file number for `os.stat`, or None for a special file."""
    try:
        file = stream.fileno() if path in (None, "-") else path
        return file if stat.S_ISREG(os.stat(file).st_mode) else None
    except FileNotFoundError:
        return path
    except (OSError, ValueError, AttributeError):
        return None  # a stream that is closed, or a test's


def _are_same(first, second) -> bool:
    try:
        return os.path.samefile(first, second)
    except FileNotFoundError:
        # Two outputs that are not there yet.
        names = isinstance(first, str) and isinstance(second, str)
        return names and os.path.realpath(first) == os.path.realpath(second)


def _is_special(path: str | os.PathLike) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
