"""The lock on a model directory while a model is trained in it."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from keras_transformer.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK_FILE = ".training.lock"


@contextlib.contextmanager
def training_lock(directory: Path) -> Iterator[None]:
    """Keeps other trainings out of a model directory.

    The operating system releases the lock when the process ends, however it ends: a file that a
    killed process left locks nobody out. Folders that had to be made, and stay empty, are removed.
    Windows and file systems without locks have none.

    Args:
        directory: model directory, made if need be.

    Raises:
        UserError: if another training holds the lock, or there is a file of that name.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"The output must be a directory. Received: output={str(directory)!r}")
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    try:
        with _locked(path):
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()


def _locked(path: Path) -> TextIO:
    while True:
        file = open(path, "a+", encoding="utf-8")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            with file:
                file.seek(0)
                holder = file.read().strip() or "another process"
            raise UserError(
                f"{str(path.parent)!r} is in use by a training that is running: {holder}. Wait "
                "for its end, or choose another output directory."
            ) from error
        except OSError:
            pass  # a file system without locks
        # The holder before may have removed the file after it was opened here.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()
    with contextlib.suppress(OSError):  # on a full disk nobody can be named
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {started}\n")
        file.flush()
    return file
