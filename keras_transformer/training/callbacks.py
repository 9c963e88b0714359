"""Keras callbacks for time limits and progress, and the file of the history."""

import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import atomic_write
from keras_transformer.training.divergence import StepWindow


class TimeLimit(keras.callbacks.Callback):
    """Stops the training after a number of minutes.

    Args:
        minutes: float, or None for no limit.
        used_minutes: float, minutes of earlier runs that count too.

    Example:

    >>> TimeLimit(2.0, used_minutes=0.5).minutes
    2.0
    """

    def __init__(self, minutes: float | None, used_minutes: float = 0.0):
        super().__init__()
        self.minutes = minutes
        self._start = time.monotonic() - 60 * used_minutes

    @property
    def elapsed_minutes(self) -> float:
        """Minutes since the start, and those of earlier runs."""
        return (time.monotonic() - self._start) / 60

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.minutes is not None and self.elapsed_minutes >= self.minutes:
            self.model.stop_training = True


class HistoryFile:
    """Rows of figures in a CSV file, one per evaluation, kept over interruptions.

    Args:
        path: the file.
        columns: names of the columns; the first is the step.

    Example:

    >>> history = HistoryFile(tempfile.mkdtemp() + "/history.csv", ("step", "loss"))
    >>> history.append({"step": 10, "loss": 2.5})
    >>> history.rows()
    [{'step': '10', 'loss': '2.5'}]
    """

    def __init__(self, path: str | os.PathLike, columns: Sequence[str]):
        self.path = Path(path)
        self.columns = tuple(columns)

    def rows(self) -> list[dict[str, str]]:
        """Returns the rows as text, without a last row that was cut off.

        Raises:
            UserError: if the file is damaged.
        """
        if not self.path.is_file():
            return []
        try:
            with open(self.path, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{str(self.path)!r} is damaged: {one_line(error)}.") from error
        return [row for row in rows if None not in row.values() and None not in row]

    def start(self, step: int = 0) -> None:
        """Creates the file, or drops the rows after the step that a training resumes from.

        Args:
            step: int, the last step to keep.
        """
        first = self.columns[0]
        kept = [r for r in self.rows() if r.get(first, "").isdecimal() and int(r[first]) <= step]
        with atomic_write(self.path) as new, open(new, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", restval="")
            writer.writeheader()
            writer.writerows(kept)

    def append(self, row: Mapping[str, object]) -> None:
        """Adds a row.

        Args:
            row: values by column; missing ones are empty.
        """
        if not self.path.is_file():
            self.start()
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)


class StepProgress(StepWindow):
    """Reports the progress of the training after every step.

    Args:
        progress: called with (steps done, total steps or None, note with loss and tokens/s).
        total: int or None, number of steps of the training.
        tokens_per_step: float, target tokens of an average step, padding not counted.
        every: int, steps between updates of the loss, a mean since the last update.

    Example:

    >>> StepProgress(lambda done, total, note: None, total=100, tokens_per_step=3600.0).total
    100
    """

    def __init__(
        self,
        progress: Callable[[int, int | None, str], object],
        total: int | None,
        tokens_per_step: float,
        every: int = 10,
    ):
        super().__init__(every, tokens_per_step)
        self.total = total
        self._progress = progress
        self._note = ""

    def on_train_begin(self, logs: dict | None = None) -> None:
        super().on_train_begin()
        self._progress(self._step, self.total, self._note or "preparing the first step")

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        super().on_train_batch_end(batch)
        if (self._step - self._window[0]) % self.every == 0:
            loss, speed = self._loss_and_speed()
            self._note = "" if loss is None else f"loss {loss:.3f}  "
            self._note += f"{speed:,.0f} tokens/s"
        self._progress(self._step, self.total, self._note)
