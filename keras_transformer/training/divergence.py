"""A loss that is not finite, or explodes: it is noticed and explained, and its batch is saved."""

import math
import os
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write

DIVERGED_BATCH_FILE = "diverged-batch.npz"


class DivergedError(UserError):
    """The loss or a weight is not finite any more, or the loss has exploded.

    Args:
        sign: the sign of it, the beginning of a sentence.
        step: int, the update at which it was noticed, from 1.
    """

    def __init__(self, sign: str, step: int):
        super().__init__(
            f"{sign} at step {step}: the training has diverged. Lower the peak learning rate, or "
            "warm up longer."
        )
        self.step = step


def check_loss_is_finite(logs, step: int) -> None:
    """Raises a `DivergedError` if the loss in the logs of a Keras callback is not finite."""
    loss = (logs or {}).get("loss")
    if loss is not None and not math.isfinite(float(loss)):
        raise DivergedError(f"The loss is {float(loss)}", step)


class RecentLoss:
    """The mean of the loss since the last call; Keras reports the mean of the whole epoch.

    Create one when an epoch begins, because Keras then resets its mean.

    Args:
        callback: `keras.callbacks.Callback` of a compiled model. Reading its `model` updates the
            values of the metrics on JAX.
    """

    def __init__(self, callback: keras.callbacks.Callback):
        self._callback = callback
        self._before = (0.0, 0.0)

    def __call__(self) -> float | None:
        """Returns the mean, or None if there was no step. Waits for the last step to finish."""
        metrics = self._callback.model.metrics
        tracker = next((metric for metric in metrics if metric.name == "loss"), None)
        if tracker is None:
            return None
        now = tuple(
            float(ops.convert_to_numpy(variable)) for variable in (tracker.total, tracker.count)
        )
        total, count = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        return total / count if count > 0 else None


class StopOnNonFiniteLoss(keras.callbacks.Callback):
    """Ends the training with a clear message when the loss is not finite, or explodes.

    Args:
        every: int, steps between checks.
        limit: float, mean loss since the last check that counts as exploded; None for no limit.

    Raises:
        UserError: in training, if the loss is NaN or infinite, or above the limit.

    Example:

    >>> from keras_transformer.training import StopOnNonFiniteLoss
    >>> StopOnNonFiniteLoss(every=10).every
    10
    """

    def __init__(self, every: int = 10, limit: float | None = None):
        super().__init__()
        self.every = every
        self.limit = limit
        self._batches = 0
        self._recent_loss = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if self.limit is not None:
            self._recent_loss = RecentLoss(self)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._batches += 1
        if self._batches % self.every == 0:
            self._check(logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._check(logs)

    def _check(self, logs):
        step = int(self.model.optimizer.iterations.numpy())
        check_loss_is_finite(logs, step)
        loss = None if self._recent_loss is None else self._recent_loss()
        if loss is not None and loss > self.limit:
            raise DivergedError(f"The loss is {loss:.3g}, above {self.limit:.3g},", step)


def save_diverged_batch(directory: str | os.PathLike, batches, position, back: int) -> Path:
    """Writes the batch that a training diverged at into `diverged-batch.npz`, and returns the path.

    The file has `source`, `target`, `labels` and `weights` of the batch, and its `epoch` and
    `batch` number, from 0. It also has those of the batch before, as `previous_source` and so on:
    the update before may have broken the weights.

    Args:
        directory: model directory.
        batches: `TokenBatches`.
        position: (epoch, batch), from 0, of the batch that the training would read next.
        back: int, number of batches from the diverged one to that position.
    """
    position = _step_back(batches, position, back)
    content = _batch_at(batches, position)
    if position != (0, 0):
        previous = _batch_at(batches, _step_back(batches, position, 1))
        content |= {f"previous_{name}": value for name, value in previous.items()}
    path = Path(directory) / DIVERGED_BATCH_FILE
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **content)
    return path


def _step_back(batches, position, count: int) -> tuple[int, int]:
    epoch, batch = position
    while batch < count:
        epoch -= 1
        batch += batches.steps_per_epoch(epoch)
    return epoch, batch - count


def _batch_at(batches, position) -> dict:
    inputs, labels, weights = next(batches.batches(*position))
    epoch, batch = position
    return {**inputs, "labels": labels, "weights": weights, "epoch": epoch, "batch": batch}
