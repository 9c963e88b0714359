"""The output directory of a training: its lock, its first files and its history."""

import contextlib
import csv
import errno
import io
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError, one_line
from keras_transformer.files import atomic_write, read_small_file, remove
from keras_transformer.layouts import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    DIVERGED_BATCH_FILE,
    HISTORY_FILE,
    LOCK_FILE,
    RECIPE_FILE,
    SETTINGS_FILE,
    TOKENIZER_FILES,
    WEIGHTS_FILE,
)
from keras_transformer.settings.training_settings import read_settings_file
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.processes import process_group

_LARGEST_HISTORY = 2**22  # bytes, for some 30,000 evaluations
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks
_SECONDS_TO_SEE = 30  # Until a file that another machine has written is seen.


@contextlib.contextmanager
def training_lock(directory: Path) -> Iterator[None]:
    """Locks a model directory for one training; creates it, and removes it if it stays empty."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"The output must be a directory. Received: output={str(directory)!r}")
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    # The system releases the lock of a killed process. A link at the path is not followed.
    lock = FileLock(path, blocking=False, on_acquired=_write_holder)
    try:
        try:
            lock.acquire()
        except Timeout as error:
            holder = ""
            with contextlib.suppress(OSError):
                holder = path.read_text(encoding="utf-8").strip()
            raise UserError(
                f"{str(directory)!r} is in use by a training that is running: "
                f"{holder or 'another process'}. Wait for its end, or choose another output "
                "directory."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows removes no open file
                path.unlink()
            lock.release()
    finally:
        with contextlib.suppress(OSError):
            for folder in created:
                folder.rmdir()


@contextlib.contextmanager
def shared_lock(output: Path) -> Iterator[None]:
    """Locks the directory in process 0, for all processes; checks that the others see it."""
    group = process_group()
    with training_lock(output) if group.is_first else contextlib.nullcontext():
        holder = group.in_first(_lock_holder, output)
        seen = group.gather(group.is_first or _sees_lock(output, holder))
        if not all(seen):
            raise UserError(
                "All processes need the output directory of process 0, on a shared disk. Received: "
                f"{str(output)!r}, which process {seen.index(False)} does not see"
            )
        yield


def _lock_holder(output):
    with contextlib.suppress(OSError):
        return (output / LOCK_FILE).read_text("utf-8")


def _sees_lock(output, holder):
    deadline = time.monotonic() + _SECONDS_TO_SEE
    while _lock_holder(output) != holder and time.monotonic() < deadline:
        time.sleep(0.1)
    return _lock_holder(output) == holder


def _write_holder(file_descriptor):
    started = time.strftime("%Y-%m-%d %H:%M")
    text = f"process {os.getpid()} on {socket.gethostname()}, since {started}\n"
    with contextlib.suppress(OSError):  # a full disk has no room for it
        os.ftruncate(file_descriptor, 0)
        os.write(file_descriptor, text.encode())


def check_output(output: Path) -> bool:
    """Returns whether `output` has a checkpoint to resume; raises if it holds something else."""
    if not (output / SETTINGS_FILE).exists():
        names = [CONFIG_FILE, WEIGHTS_FILE, RECIPE_FILE, HISTORY_FILE, CHECKPOINT_FOLDER]
        names += [DIVERGED_BATCH_FILE, *sorted(TOKENIZER_FILES)]
        missing = SETTINGS_FILE
    elif Checkpoints(output / CHECKPOINT_FOLDER).exists():
        return True
    else:
        read_settings_file(output)  # raises if the file is of another program
        names = [CONFIG_FILE, WEIGHTS_FILE]  # written when a training is finished
        missing = f"{CHECKPOINT_FOLDER}/{Checkpoints(output).state_path.name}"
    if kept := [name for name in names if (output / name).exists()]:
        raise UserError(
            f"{str(output)!r} holds {', '.join(kept)} without {missing}: it cannot be trained "
            "further, and nothing in it is overwritten. Choose another output directory."
        )
    return False


def start_directory(output: Path, tokenizers: TokenizerPair, settings, fingerprint) -> None:
    """Writes the first files of a new training; removes those of one without a checkpoint."""
    remove(output / CHECKPOINT_FOLDER)
    for name in TOKENIZER_FILES:
        (output / name).unlink(missing_ok=True)
    # First, because it tells which program wrote the other files.
    settings.save(output, fingerprint)
    tokenizers.save(output)


class HistoryFile:
    """Rows of figures in a CSV file, one per evaluation, kept over interruptions.

    Args:
        path: The file.
        columns: Names of the columns; the first is the step.

    Example:

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/history.csv"
    >>> history = keras_transformer.training.HistoryFile(path, ("step", "loss"))
    >>> history.append({"step": 10, "loss": 2.5})
    >>> history.rows()
    [{'step': '10', 'loss': '2.5'}]
    """

    def __init__(self, path: str | os.PathLike, columns: Sequence[str]):
        self.path = Path(path)
        self.columns = tuple(columns)

    def rows(self) -> list[dict[str, str]]:
        """Returns the rows as dicts of text; rows that were cut off are left out.

        Raises:
            UserError: If the file is damaged, or larger than 4 MB.
        """
        if not self.path.is_file():
            return []
        try:
            text = read_small_file(self.path, _LARGEST_HISTORY).decode("utf-8")
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
        except (ValueError, csv.Error) as error:
            raise UserError(f"{str(self.path)!r} is damaged: {one_line(error)}.") from error
        return [row for row in rows if None not in row.values() and None not in row]

    def start(self, step: int = 0) -> None:
        """Creates the file, or drops the rows after the step that a training resumes from.

        Args:
            step: The last step to keep.
        """
        first = self.columns[0]
        kept = [r for r in self.rows() if r.get(first, "").isdecimal() and int(r[first]) <= step]
        # Columns of an earlier run are kept too.
        self.columns = tuple(dict.fromkeys([*self.columns, *(kept[0] if kept else ())]))
        with atomic_write(self.path) as new, open(new, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, restval="")
            writer.writeheader()
            writer.writerows(kept)

    def append(self, row: Mapping[str, object]) -> None:
        """Adds a row.

        Args:
            row: Values by column; missing ones are empty.
        """
        if not self.path.is_file():
            self.start()
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)
