"""Writes files aside and renames them into place, and reads TOML and JSON files."""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import time
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from keras_transformer.errors import UserError, one_line

# Temporary files that are older are leftovers of killed processes.
_LEFTOVER_SECONDS = 3600
_MAX_READINGS = 10  # while another process replaces the files
_LARGEST_JSON = 2**22  # bytes; the values take some 30 times as much memory
_REPLACED = ".replaced-"  # begins the name that an earlier folder has while it is replaced
_COMPLETE = ".replacing"  # a folder whose files are complete and about to move to its parent
_OBSOLETE = ".obsolete"  # ends the name of an empty file there that stands for a file to remove


def atomic_write(path: str | os.PathLike) -> AbstractContextManager[pathlib.Path]:
    """Yields a temporary path beside `path`, which replaces `path` if the block succeeds.

    A reader of `path` sees the old content or the whole new content, even after a power cut. A
    symbolic link is replaced, not followed, because it may come with a folder from elsewhere:
    resolve a path that the user names. A missing folder is created.
    """
    return _written_aside(pathlib.Path(path), os.replace)


def atomic_folder(directory: str | os.PathLike) -> AbstractContextManager[pathlib.Path]:
    """Yields a path for a folder that replaces `directory`, like `atomic_write`.

    A symbolic link stays a link. A kill between the two renames leaves the old folder beside it,
    under a name that begins with `.replaced-`.
    """
    return _written_aside(pathlib.Path(os.path.realpath(directory)), _replace_folder)


@contextlib.contextmanager
def _written_aside(path, replace):
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary = name_beside(path)
    try:
        yield temporary
        for file in (temporary, *temporary.rglob("*")):
            if file.is_file():
                with open(file, "rb+") as opened:
                    os.fsync(opened.fileno())  # the file is on the disk, not in a cache only
        replace(temporary, path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)  # the error of a full disk names no file
        raise
    finally:
        remove(temporary)


def _replace_folder(new, directory):
    try:
        os.rename(new, directory)
    except OSError:  # It replaces no folder that is not empty.
        if not directory.is_dir():
            raise
        old = name_beside(directory, _REPLACED)
        os.rename(directory, old)
        try:
            os.rename(new, directory)
        except BaseException:
            os.rename(old, directory)
            raise
        remove(old)
    # Only now: after a kill between the two renames, a leftover may be the only copy.
    remove_leftovers(directory, _REPLACED)


@contextlib.contextmanager
def atomic_files(
    directory: str | os.PathLike, obsolete: Iterable[pathlib.Path] = ()
) -> Iterator[pathlib.Path]:
    """Yields a new folder whose files move into `directory`, all or none, if the block succeeds.

    Other files of `directory` stay, except the `obsolete` ones. A process that is killed while the
    files move leaves the rest in a folder `.replacing`, where `current_file` finds them;
    `finish_replacing`, which is also called here first, moves them.
    """
    directory = pathlib.Path(os.path.realpath(directory))
    exists = directory.is_dir()
    finish_replacing(directory)
    remove_leftovers(directory)
    with _written_aside(directory / _COMPLETE if exists else directory, os.rename) as aside:
        aside.mkdir()
        yield aside
        if exists:
            for path in (directory / new.name for new in aside.iterdir()):
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            for path in obsolete:
                (aside / f"{path.name}{_OBSOLETE}").touch()
    finish_replacing(directory)


def current_file(directory: str | os.PathLike, name: str) -> pathlib.Path:
    """Returns the path of a file of `atomic_files`, which may still be in `.replacing`.

    Whoever writes next moves it. If nothing is at the path, the file is missing or to be removed.
    """
    aside = pathlib.Path(directory, _COMPLETE)
    names = (name, f"{name}{_OBSOLETE}")
    is_aside = not aside.is_symlink() and any(os.path.lexists(aside / each) for each in names)
    return (aside if is_aside else aside.parent) / name


def read_unchanged(
    directories: Sequence[str | os.PathLike], name: str, read: Callable[[], Any]
) -> Any:
    """Returns `read()`, which is called again if `atomic_files` replaced the files meanwhile.

    So all that it reads is of one state. `name` is a file that is replaced every time.
    """
    error: Exception | None = None
    for _ in range(_MAX_READINGS):
        versions = [_version(directory, name) for directory in directories]
        try:
            result, error = read(), None
        except (UserError, OSError) as raised:
            error = raised
        if versions == [_version(directory, name) for directory in directories]:
            if error is not None:
                raise error
            return result
    names = ", ".join(repr(str(directory)) for directory in directories)
    raise UserError(f"The files of {names} are replaced faster than they can be read.")


def _version(directory, name):
    """Returns the names of the files that are about to move, and the time of one file."""
    aside = pathlib.Path(directory, _COMPLETE)
    with contextlib.suppress(OSError):
        names = [] if aside.is_symlink() or not aside.is_dir() else sorted(os.listdir(aside))
        return names, os.stat(current_file(directory, name)).st_mtime_ns


def finish_replacing(directory: str | os.PathLike) -> None:
    """Moves the files that a killed `atomic_files` left complete, if there are any."""
    directory = pathlib.Path(directory)
    if (directory / _COMPLETE).is_symlink():
        (directory / _COMPLETE).unlink()  # It is not ours, and may point anywhere.
    # Another process may be doing the same.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in list((directory / _COMPLETE).iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if path.suffix == _OBSOLETE:
                    (directory / path.stem).unlink(missing_ok=True)
                    path.unlink()
                else:
                    os.replace(path, directory / path.name)
        (directory / _COMPLETE).rmdir()


def name_beside(path: pathlib.Path, prefix: str = ".writing-") -> pathlib.Path:
    """Returns a hidden path in the same folder that does not exist yet, and ends like `path`."""
    # File systems have room for 255 bytes, 63 characters of UTF-8.
    return path.parent / f"{prefix}{uuid.uuid4().hex[:12]}-{path.name[-50:]}"


def remove_leftovers(path: pathlib.Path, prefix: str = ".writing-", any_name: bool = False) -> None:
    """Removes files of killed processes at `name_beside(path, prefix)` that are an hour old.

    With `any_name`, also those of all other paths in the same folder.
    """
    ending = ".*" if any_name else re.escape(path.name[-50:])
    pattern = re.compile(f"{re.escape(prefix)}[0-9a-f]{{12}}-{ending}")
    with contextlib.suppress(OSError):
        for leftover in path.parent.iterdir():
            if not pattern.fullmatch(leftover.name):
                continue
            # A folder's own time does not change while a file in it grows. `rglob` would list the
            # folder that a link points to.
            inside = () if leftover.is_symlink() else leftover.rglob("*")
            times = [item.lstat().st_mtime for item in (leftover, *inside)]
            if max(times) < time.time() - _LEFTOVER_SECONDS:
                remove(leftover)


def remove(path: pathlib.Path) -> None:
    """Removes a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def require_file(path: str | os.PathLike, is_reread: bool = False) -> pathlib.Path:
    """Returns a path; raises a `UserError` if it is no file, or a pipe that would be read again."""
    path = pathlib.Path(path)
    if path.is_dir():
        raise UserError(f"Expected a file but {str(path)!r} is a folder.")
    if not path.exists():
        raise UserError(f"File not found: {str(path)!r}.")
    if is_reread and not path.is_file():
        kind = "a pipe" if path.is_fifo() else "not a regular file"
        raise UserError(f"{str(path)!r} is {kind}; it is read more than once: give a regular file.")
    return path


def read_toml(module: str, name: str) -> dict:
    """Returns the content of a TOML file beside a module, which is given by its `__file__`."""
    return tomllib.loads(pathlib.Path(module).with_name(name).read_text(encoding="utf-8"))


def read_small_file(path: str | os.PathLike, max_bytes: int) -> bytes:
    """Returns the content of a file; raises a ValueError if it is larger."""
    with open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return content


def read_json(path: str | os.PathLike, max_bytes: int = _LARGEST_JSON) -> dict:
    """Reads a JSON object; raises a `UserError` if a file is missing, damaged or not an object."""
    path, name = pathlib.Path(path), repr(str(path))
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{name} is a pipe or a device, not a file.")
    try:
        content = json.loads(read_small_file(path, max_bytes).decode("utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{name} is missing.") from error
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from error
    # Python refuses numbers of thousands of digits, and thousands of brackets within each other.
    except (ValueError, RecursionError) as error:
        reason = f"it is not a complete JSON file ({one_line(error)})"
        raise UserError(f"{name} is damaged: {reason}.") from error
    if not isinstance(content, dict):
        received = type(content).__name__
        raise UserError(f"{name} is damaged: it must hold a JSON object. Received: {received}")
    return content
