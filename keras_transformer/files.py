"""Files: written aside and renamed, read as strict UTF-8 lines from plain text or gzip."""

import contextlib
import gzip
import os
import pathlib
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator

from keras_transformer.errors import UserError

_BYTE_ORDER_MARK = "\ufeff"
# What is still being written is younger than that.
_LEFTOVER_SECONDS = 3600
_REPLACED = ".replaced-"  # begins the name that an earlier folder has while it is replaced


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Gives a temporary path beside `path`, which replaces `path` if the block succeeds.

    A reader of `path` sees the old content or the whole new one, never a part. The temporary name
    ends like `path`, because some writers (`model.save_weights`) look at the ending. A block that
    fails leaves `path` as it was and nothing beside it. What was written is on the disk before it
    is renamed, so that a power cut does not leave an empty file either; what a killed process
    left beside `path` is removed once it is an hour old.

    Args:
        path: the file to write. Its folder is made if need be.

    Yields:
        `pathlib.Path`, in the same folder, that does not exist yet.

    Example:

    >>> import tempfile, pathlib
    >>> from keras_transformer.files import atomic_write
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("kept")
    >>> target.read_text()
    'kept'
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary = name_beside(path)
    try:
        yield temporary
        sync_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


@contextlib.contextmanager
def atomic_folder(directory: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Gives a path beside `directory`, for a folder that replaces it if the block succeeds.

    As `atomic_write`, for a whole folder: a block that fails leaves `directory` as it was.

    Args:
        directory: the folder to write; what it holds is removed in the end.

    Yields:
        `pathlib.Path`, in the same folder, that does not exist yet.

    Example:

    >>> import tempfile, pathlib
    >>> from keras_transformer.files import atomic_folder
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "notes"
    >>> with atomic_folder(target) as temporary:
    ...     temporary.mkdir()
    ...     _ = (temporary / "first.txt").write_text("kept")
    >>> [path.name for path in target.iterdir()]
    ['first.txt']
    """
    directory = pathlib.Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory)
    temporary = name_beside(directory)
    try:
        yield temporary
        sync_to_disk(temporary)
        _replace_folder(temporary, directory)
    finally:
        remove(temporary)
    # Not before: of a folder killed while it was replaced, it may be all that was left.
    remove_leftovers(directory, _REPLACED)


def _replace_folder(new: pathlib.Path, directory: pathlib.Path) -> None:
    if not directory.exists():
        os.rename(new, directory)
        return
    # A folder that is not empty cannot be renamed onto: the old one steps aside first.
    old = name_beside(directory, _REPLACED)
    os.rename(directory, old)
    try:
        os.rename(new, directory)
    except BaseException:
        os.rename(old, directory)
        raise
    remove(old)


def name_beside(path: pathlib.Path, prefix: str = ".writing-") -> pathlib.Path:
    """Returns a hidden path in the same folder that does not exist yet, and ends like `path`."""
    return path.parent / f"{prefix}{uuid.uuid4().hex[:12]}-{path.name}"


def remove_leftovers(path: pathlib.Path, prefix: str = ".writing-") -> None:
    """Removes what a killed process left at a `name_beside(path, prefix)`, if it is an hour old.

    Failing to is no error: leftovers are in nobody's way.
    """
    pattern = re.compile(f"{re.escape(prefix)}[0-9a-f]{{12}}-{re.escape(path.name)}")
    with contextlib.suppress(OSError):
        for leftover in path.parent.iterdir():
            if not pattern.fullmatch(leftover.name):
                continue
            # A folder's own time does not change while a file in it grows.
            times = [item.lstat().st_mtime for item in (leftover, *leftover.rglob("*"))]
            if max(times) < time.time() - _LEFTOVER_SECONDS:
                remove(leftover)


def sync_to_disk(path: pathlib.Path) -> None:
    """Waits until a file, or every file of a folder, is on the disk and not in a cache only."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with open(file, "rb+") as opened:
                os.fsync(opened.fileno())


def remove(path: pathlib.Path) -> None:
    """Removes a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def require_file(path: str | os.PathLike) -> pathlib.Path:
    """Returns `path` as a `pathlib.Path`, or raises if it is no existing file.

    Args:
        path: a file that must exist.

    Returns:
        `pathlib.Path`.

    Raises:
        UserError: if there is nothing there, or a folder.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise UserError(f"Expected a file but {str(path)!r} is a folder.")
    if not path.exists():
        raise UserError(f"File not found: {str(path)!r}.")
    return path


def open_text(path: str | os.PathLike) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file, without their line ends; `.gz` is unpacked.

    A line ends at `\\n` (and `\\r\\n`) only, as in `wc -l`: other separators that
    `str.splitlines` knows (U+2028, form feed) stay in the text, or parallel files would shift
    against each other. A byte order mark at the start is left out.

    Args:
        path: the file; one whose name ends in `.gz` is read as gzip.

    Yields:
        `str`, one per line.

    Raises:
        UserError: on the first line asked for, if the file is missing; later, if a line is not
            UTF-8 (with the line's number) or the gzip data is damaged.
    """
    path = require_file(path)
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                raw = raw.removesuffix(b"\n").removesuffix(b"\r")
                line = raw.decode("utf-8")
                yield line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
    except UnicodeDecodeError as error:
        raise UserError(
            f"{str(path)!r}, line {number}: the text is not valid UTF-8 "
            f"(byte 0x{error.object[error.start]:02x} at column {error.start + 1})."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{str(path)!r} is not a complete gzip file: {error}") from error
    except PermissionError as error:
        raise UserError(f"{str(path)!r} cannot be read: permission denied.") from error
