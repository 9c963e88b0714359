"""Lines of strict UTF-8, in files or standard streams, and the answers to them line by line."""

import contextlib
import dataclasses
import io
import os
import pathlib
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write, require_file
from keras_transformer.layouts import CONFIG_FILE, RECIPE_FILE, SETTINGS_FILE, SHORTLIST_FILE

# Files of a model directory that commands read. An output may replace other files in it.
_MODEL_FILES = (CONFIG_FILE, RECIPE_FILE, SETTINGS_FILE, "*.weights.h5", "*tokenizer.*",
                SHORTLIST_FILE)  # fmt: skip
# Names of standard output. Opened as a path, the file that it is redirected to would be replaced.
_STANDARD_OUTPUT = (None, "-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
# Maximum number of characters in a chunk of lines; their ids take some 100 bytes for each.
_CHUNK_CHARACTERS = 2**22
_LENGTH_ADVICE = "split the line, or use --long-lines split or truncate"


def read_lines(path: str | None) -> Iterator[str]:
    """Returns the lines of a UTF-8 file, like `open_text`; None and `"-"` are standard input."""
    from keras_transformer.data.corpora import decode_line, open_text, raw_lines

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


def input_lines(arguments) -> Iterator[str]:
    """Returns the lines that a command answers: its texts, or those of `--input`."""
    return iter(arguments.texts) if arguments.texts else read_lines(arguments.input)


def count_lines(arguments) -> int | None:
    """Returns the number of lines, None for a pipe; sets chunks of one line for a terminal."""
    if arguments.texts:
        if arguments.input is not None:
            rule = "The text comes from the command line or from --input, not from both"
            raise UserError(f"{rule}. Received: {arguments.texts[0]!r} and {arguments.input!r}")
        return len(arguments.texts)
    if arguments.input in (None, "-"):
        if sys.stdin.isatty():
            arguments.chunk_size = 1
        return None
    if not require_file(arguments.input).is_file():
        return None
    count = sum(1 for _ in read_lines(arguments.input))
    if not count:
        raise UserError(f"The input file {arguments.input!r} is empty.")
    return count


def require_same_length(files: Iterable[tuple[str, list[str]]]) -> None:
    """Raises a `UserError` unless all files (name and lines) have the same number of lines."""
    (first, lines), *others = files
    for name, other in others:
        if len(other) != len(lines):
            received = f"{first!r} with {len(lines):,} and {name!r} with {len(other):,}"
            rule = "Parallel files must have the same number of lines"
            raise UserError(f"{rule}. Received: {received}.")


def check_lengths(tokenizer, lines, limit, name, first=1, advice=_LENGTH_ADVICE) -> None:
    """Raises a `UserError` that names the first line of more than `limit` ids, EOS included.

    With None as `limit`, lines may have any length. A line without the code of its language, which
    some models need, raises one too. `name` is the name of the file, and `first` is the number of
    the first line.
    """
    try:
        encoded = tokenizer.encode_batch(lines)
    except UserError as error:
        if len(lines) == 1:
            raise UserError(f"{name}, line {first}: {error}") from error
        half = len(lines) // 2
        check_lengths(tokenizer, lines[:half], limit, name, first, advice)
        return check_lengths(tokenizer, lines[half:], limit, name, first + half, advice)
    for number, ids in enumerate(encoded, start=first):
        if limit is not None and len(ids) > limit - 1:
            rule = f"{len(ids):,} subwords are more than the {limit - 1:,} that the model reads"
            raise UserError(f"{name}, line {number}: {rule}; {advice}.")


def chunks(lines: Iterable[str | tuple[str, ...]], size: int) -> Iterator[list]:
    """Yields lists of `size` lines, or tuples of lines; fewer at the end and of long lines."""
    from keras_transformer.data.corpora import line_chunks

    return line_chunks(lines, size, _CHUNK_CHARACTERS)


def as_line(text: str) -> str:
    """Returns text on one line; a line break in an answer would shift the lines after it."""
    return text.replace("\r", " ").replace("\n", " ")


def answer_all(method, inputs, progress, **options) -> tuple:
    """Returns the answers of a pipeline's method to all inputs, and the seconds that it took."""
    start = time.monotonic()
    with progress:
        answers = method(inputs, progress=progress.update, **options)
    return answers, time.monotonic() - start


def write_answers(arguments, progress, chunks, answers, options) -> int:
    """Writes the answers to all chunks of lines and returns the number of lines.

    `answers` takes a chunk, the number of its first line and the options of a pipeline's method.
    A search that samples gets a new seed for each chunk, because each batch uses one seed.
    """
    num_lines, num_batches, search = 0, 0, options["search"]
    with open_output(arguments.output) as output, progress:

        def show(done, batches=1):
            nonlocal num_batches
            num_batches += batches
            # On a terminal, the answers themselves show the progress.
            if not output.isatty():
                progress.update(num_lines + done, note=f"batch {num_batches:,}")

        for chunk in chunks:
            changes = {"progress": lambda done, _: show(done)}
            if search.is_random:
                from keras_transformer.inference.batch_inference import BATCH_OF_SEED

                seed = (search.seed + BATCH_OF_SEED * num_batches) % 2**31
                changes["search"] = dataclasses.replace(search, seed=seed)
            for line in answers(chunk, num_lines + 1, options | changes):
                output.write(line + "\n")
            num_lines += len(chunk)
            output.flush()
            show(0, batches=0)
    return num_lines


def save_answers(path: str | None, answers: Iterable[str]) -> None:
    """Writes answers to the file of `--output`, if it is given, one per line."""
    if path:
        with open_output(path) as file:
            file.writelines(answer + "\n" for answer in answers)
        say(f"wrote {path}")


def report_split(translator: Any, num_lines: int) -> None:
    """Prints the number of lines that were translated in parts, if there are any."""
    if translator.num_split:
        say(f"split {translator.num_split:,} of {num_lines:,} lines and joined the answers")


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
            rule = "The output must not be a file that the command also reads or writes"
            received = f"{path or '-'!r}, which is the same file as {other!r}"
            raise UserError(f"{rule}. Received: {received}.")
    if path in _STANDARD_OUTPUT:
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
    if path in _STANDARD_OUTPUT:
        # Answers are UTF-8 in every locale. In tests, the stream may not have this method.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        sys.stdout.flush()
        return
    check_output(path)
    target = os.path.realpath(path)
    # A device or a named pipe must not be replaced by a file.
    aside = contextlib.nullcontext(path) if _is_special(path) else atomic_write(target)
    try:
        with aside as temporary, open(temporary, "wb") as file:
            packed = file
            if path.endswith(".gz"):
                import gzip  # slow to import

                packed = gzip.GzipFile(os.path.basename(path), "wb", fileobj=file)
            with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
                yield text
    except OSError as error:
        if error.errno is not None and error.filename in (None, target):
            error.filename = path  # the error of a full device names no file
        raise


def _identity(path, stream):
    """Returns a value that is the same for all names of a file, or None for a special file."""
    try:
        is_stream = path is None or str(path) in _STANDARD_OUTPUT
        status = os.stat(stream.fileno() if is_stream else path)
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        return os.path.realpath(path or "")  # an output that does not exist yet
    except (OSError, ValueError, AttributeError):
        return None  # a closed stream, or a stream in a test


def _is_special(path):
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
