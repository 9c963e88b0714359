"""Keras callbacks for time, progress and divergence, and files of history and a diverged batch."""

import csv
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import atomic_write

DIVERGED_BATCH_FILE = "diverged-batch.npz"


class DivergedError(UserError):
    """At `step`, the loss or a weight was not finite, or the loss exploded; `sign` says which."""

    def __init__(self, sign: str, step: int):
        super().__init__(
            f"{sign} at step {step}: the training has diverged. Lower the peak learning rate, or "
            "warm up longer."
        )
        self.step = step


def loss_sums(model: keras.Model) -> list[float] | None:
    """Returns the sum of the losses in Keras' mean, and their number; None without that mean."""
    variables = _loss_variables(model)
    return variables and [float(ops.convert_to_numpy(variable)) for variable in variables]


def set_loss_sums(model: keras.Model, sums: Sequence[float]) -> None:
    """Sets the sum and the number of losses in Keras' mean, as `loss_sums` returned them."""
    for variable, value in zip(_loss_variables(model), sums, strict=True):
        variable.assign(value)


def _loss_variables(model):
    # Reading `model.metrics` updates the values on JAX.
    tracker = next((metric for metric in model.metrics if metric.name == "loss"), None)
    return None if tracker is None else (tracker.total, tracker.count)


class StepWindow(keras.callbacks.Callback):
    """Base of callbacks that report the loss and the speed of the last steps."""

    def __init__(self, every: int, tokens_per_step: float = 0.0):
        super().__init__()
        self.every = every
        self._tokens_per_step = tokens_per_step
        self._sums: list[float] | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._step = int(self.model.optimizer.iterations.numpy())

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        # The evaluation between two epochs does not count as training time.
        self._window = (self._step, time.monotonic())
        self._sums = loss_sums(self.model)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._step += 1

    def _recent_loss(self):
        """Returns the mean loss since the last call, or None; Keras reports the epoch's mean."""
        before, self._sums = self._sums, loss_sums(self.model)
        if before is None or self._sums is None:
            return None
        total, count = (now - then for now, then in zip(self._sums, before, strict=True))
        return total / count if count > 0 else None

    def _loss_and_speed(self):
        """Returns the recent loss, and the tokens per second since the start of the window."""
        loss = self._recent_loss()  # Waits for the step, so it comes before the clock is read.
        first, start = self._window
        tokens = (self._step - first) * self._tokens_per_step
        return loss, tokens / max(time.monotonic() - start, 1e-9)  # a clock may be coarse


class StopOnNonFiniteLoss(StepWindow):
    """Ends the training with a clear message when the loss is not finite, or explodes.

    Args:
        every: int, steps between checks.
        limit: float, maximum of the mean loss since the last check; None for no limit.

    Raises:
        UserError: in training, if the loss is NaN or infinite, or above the limit.

    Example:

    >>> from keras_transformer.training import StopOnNonFiniteLoss
    >>> StopOnNonFiniteLoss(every=10).every
    10
    """

    def __init__(self, every: int = 10, limit: float | None = None):
        super().__init__(every)
        self.limit = limit
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._batches += 1
        if self._batches % self.every == 0:
            self.on_epoch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(float(loss)):
            raise DivergedError(f"The loss is {float(loss)}", step)
        loss = None if self.limit is None else self._recent_loss()
        if loss is not None and loss > self.limit:
            raise DivergedError(f"The loss is {loss:.3g}, above {self.limit:.3g},", step)


def save_diverged_batch(directory: Path, batches, position, back: int) -> Path:
    """Writes the batch `back` steps before `position`, an (epoch, batch); returns the path."""
    content = _batch_before(batches, position, back)
    # The update of the previous batch may have broken the weights.
    position = content["epoch"], content["batch"]
    if position != (0, 0):
        previous = _batch_before(batches, position, 1)
        content |= {f"previous_{name}": value for name, value in previous.items()}
    path = directory / DIVERGED_BATCH_FILE
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **content)
    return path


def _batch_before(batches, position, back: int) -> dict:
    epoch, batch = position
    while batch < back:
        epoch -= 1
        batch += batches.steps_per_epoch(epoch)
    batch -= back
    inputs, labels, weights = next(batches.batches(epoch, batch))
    return {**inputs, "labels": labels, "weights": weights, "epoch": epoch, "batch": batch}


class TimeLimit(keras.callbacks.Callback):
    """Stops the training after a number of minutes.

    Args:
        minutes: float, or None for no limit.
        used_minutes: float, minutes of earlier runs that count too.

    Example:

    >>> from keras_transformer.training import TimeLimit
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

    >>> import tempfile
    >>> from keras_transformer.training import HistoryFile
    >>> history = HistoryFile(tempfile.mkdtemp() + "/history.csv", ("step", "loss"))
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

    >>> from keras_transformer.training import StepProgress
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
