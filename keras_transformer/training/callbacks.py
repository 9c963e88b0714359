"""Keras callbacks for time, progress, divergence and TensorBoard, and their list."""

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_transformer.errors import UserError

_TENSORBOARD_SAMPLES = 5


class DivergedError(UserError):
    """At `step`, the loss or a weight was not finite, or the loss exploded; `sign` says which."""

    def __init__(self, sign: str, step: int):
        super().__init__(
            f"{sign} at step {step}: the training has diverged. Lower the peak learning rate, or "
            "warm up longer."
        )
        self.step = step


def loss_variables(model: keras.Model) -> list:
    """Returns the variables of Keras' mean loss, sum and number of losses; `[]` if it has none."""
    # Reading `model.metrics` updates the values on JAX.
    means = [metric for metric in model.metrics if metric.name == "loss"]
    return [means[0].total, means[0].count] if means else []


class RoundCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a training that is many calls of `fit`, one for each round.

    They see a single training, whose epochs end at evaluations. After each step, it stops in all
    processes if a callback asks for it or a signal was received in one of them.

    Args:
        callbacks: List of Keras callbacks.
        model: The model that is trained.
        signals: `StopSignals`.
        group: `ProcessGroup`.
        before_end: Called before `fit` deletes its iterator.
        **options: As in `keras.callbacks.CallbackList`.

    Attributes:
        signal: The signal that stopped the training, or None.
    """

    def __init__(self, callbacks: list, model: keras.Model, signals, group, before_end, **options):
        super().__init__(callbacks, add_history=True, model=model, **options)
        self.signal: int | None = None
        self._signals, self._group, self._before_end = signals, group, before_end
        self._first_batch, self._ends_epoch = 0, True
        self._loss_sums: Sequence | None = None
        self._has_begun = self._is_in_epoch = False

    def start_round(self, first_batch: int, ends_epoch: bool, loss_sums: Sequence | None) -> None:
        """Prepares for a call of `fit`.

        Args:
            first_batch: Number of the first batch in the epoch, from 0.
            ends_epoch: Whether the epoch ends with this round.
            loss_sums: Values of `loss_variables` to begin with; None for 0.
        """
        self._first_batch, self._ends_epoch, self._loss_sums = first_batch, ends_epoch, loss_sums

    def on_train_begin(self, logs: dict | None = None) -> None:
        if not self._has_begun:
            self._has_begun = True
            super().on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        # `fit` has just reset the mean loss, which is that of an epoch.
        if self._loss_sums:
            for variable, value in zip(loss_variables(self.model), self._loss_sums, strict=True):
                variable.assign(value)
        if not self._is_in_epoch:
            self._is_in_epoch = True
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        super().on_train_batch_begin(self._first_batch + batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        super().on_train_batch_end(self._first_batch + batch, logs)
        self._signals.waits = True
        states = self._group.gather([self.model.stop_training, self._signals.received])
        self.signal = first_signal(signal for _, signal in states)
        if self.signal is not None or any(stops for stops, _ in states):
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if self._ends_epoch or self.model.stop_training:
            self._is_in_epoch = False
            super().on_epoch_end(epoch, logs)

    def on_train_end(self, logs: dict | None = None) -> None:
        self._before_end()

    def finish(self) -> None:
        """Tells the callbacks that the training has ended."""
        if self._has_begun:
            super().on_train_end()


def first_signal(signals: Iterable) -> int | None:
    """Returns the first signal that a process has received; None without one."""
    return next((signal for signal in signals if signal is not None), None)


class StepWindow(keras.callbacks.Callback):
    """Base class of callbacks that report the loss and the speed of the last steps."""

    def __init__(self, every: int, tokens_per_step: float = 0.0):
        super().__init__()
        self.every = every
        self._tokens_per_step = tokens_per_step
        self._sums: list[float] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._step = int(self.model.optimizer.iterations.numpy())

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        # The evaluation between two epochs does not count as training time.
        self._window = (self._step, time.monotonic())
        self._recent_loss()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._step += 1

    def _recent_loss(self):
        """Returns the mean loss since the last call, or None; Keras reports the epoch's mean."""
        before = self._sums
        self._sums = [float(ops.convert_to_numpy(value)) for value in loss_variables(self.model)]
        if not before or not self._sums:
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
        every: Steps between checks.
        limit: Maximum of the mean loss since the last check; None for no limit.

    Raises:
        UserError: In training, if the loss is NaN or infinite, or above the limit.

    Example:

    >>> keras_transformer.training.StopOnNonFiniteLoss(every=10).every
    10
    """

    def __init__(self, every: int = 10, limit: float | None = None):
        super().__init__(every)
        self.limit, self._batches = limit, 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._batches += 1
        if self._batches % self.every == 0:
            self._check_loss(logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._check_loss(logs)

    def _check_loss(self, logs):
        step = int(self.model.optimizer.iterations.numpy())
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(float(loss)):
            raise DivergedError(f"The loss is {float(loss)}", step)
        loss = None if self.limit is None else self._recent_loss()
        if loss is not None and loss > self.limit:
            raise DivergedError(f"The loss is {loss:.3g}, above {self.limit:.3g},", step)


class TimeLimit(keras.callbacks.Callback):
    """Stops the training after a number of minutes.

    Args:
        minutes: Maximum number of minutes; None for no limit.
        used_minutes: Minutes of earlier runs that count too.

    Example:

    >>> keras_transformer.training.TimeLimit(2.0, used_minutes=0.5).minutes
    2.0
    """

    def __init__(self, minutes: float | None, used_minutes: float = 0.0):
        super().__init__()
        self.minutes = minutes
        self._used_minutes, self._start = used_minutes, math.inf

    @property
    def elapsed_minutes(self) -> float:
        """Minutes since the first `fit` began, and those of earlier runs."""
        return self._used_minutes + max(0.0, time.monotonic() - self._start) / 60

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._start = min(self._start, time.monotonic())

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.minutes is not None and self.elapsed_minutes >= self.minutes:
            self.model.stop_training = True


class StepProgress(StepWindow):
    """Reports the progress of the training after every step.

    Args:
        progress: Called with (steps done, total steps or None, note with loss and tokens/s).
        total: Number of steps of the training; None if it is unknown.
        tokens_per_step: Target tokens of an average step, padding not counted.
        every: Steps between updates of the loss, a mean since the last update.

    Example:

    >>> keras_transformer.training.StepProgress(print, total=100, tokens_per_step=3600.0).total
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
            self._window = (self._step, time.monotonic())
        self._progress(self._step, self.total, self._note)


class TensorBoardLog(StepWindow):
    """Writes the figures of a training for TensorBoard, and samples of answers and attention."""

    def __init__(self, directory: Path, tokens_per_step: float, padding_share: Mapping[str, float]):
        super().__init__(10, tokens_per_step)
        self.directory = directory
        self._padding = {f"padding/{side}": share for side, share in padding_share.items()}
        self._file_writer: Any = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        super().on_train_begin()
        # Before the first step is traced: the norm becomes a part of it.
        watch = getattr(self.model.optimizer, "watch_gradient_norm", None)
        if watch is not None and keras.backend.backend() == "tensorflow":
            watch(self.model)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        super().on_train_batch_end(batch)
        if self._step % self.every or self._step == self._window[0]:
            return
        loss, speed = self._loss_and_speed()
        optimizer = self.model.optimizer
        figures = {
            "train/learning_rate": optimizer.learning_rate,
            "train/tokens_per_second": speed,
            "train/loss": loss,
            "train/gradient_norm": getattr(optimizer, "gradient_norm", None),
            **self._padding,
        }
        for name, value in figures.items():
            if value is not None:
                self._write(name, "scalars", float(ops.convert_to_numpy(value)), self._step)
        self._window = (self._step, time.monotonic())

    def on_train_end(self, logs: dict | None = None) -> None:
        if self._file_writer is not None:
            self._file_writer.flush()

    def write_evaluation(self, row: Mapping[str, Any], names: Iterable[str]) -> None:
        """Writes the figures of an evaluation, a row of the history, of these validation sets."""
        tags = {f"{name}_": f"{name}/" for name in names}
        for column, value in row.items():
            start = column.removesuffix(figure := column.rpartition("_")[2])
            if start in tags:
                self._write(tags[start] + figure, "scalars", float(value), row["step"])
        self.on_train_end()

    def write_samples(self, step: int, score) -> None:
        """Writes sentences with the answers that `score` evaluated, and an attention map."""
        rows = score.samples(_TENSORBOARD_SAMPLES)
        table = [("source", score.answer_name, "reference"), *rows]
        self._write(f"valid/{score.answer_name}s", "text", table, step)
        shortest = min((source for source, *_ in rows), key=len)
        pipeline = score.pipeline
        # A picture must not end the training: a sentence that the model cannot read is not drawn.
        if 0 < len(pipeline.source_tokenizer.encode(shortest)) < pipeline.max_source_length:
            from keras_transformer.evaluation import attention_weights, plot_attention

            weights = attention_weights(pipeline, shortest)
            last = weights.view("cross", layer=len(weights.cross))
            with tempfile.TemporaryDirectory() as folder:
                picture = plot_attention(*last, Path(folder, "attention.png")).read_bytes()
            # TensorBoard expects width and height, here from the PNG header, before the picture.
            size = [str(int.from_bytes(picture[at : at + 4], "big")) for at in (16, 20)]
            self._write("valid/attention", "images", [*size, picture], step)

    def _write(self, name, plugin, value, step):
        import tensorflow as tf

        if self._file_writer is None:
            self._file_writer = tf.summary.create_file_writer(str(self.directory))
        # `tf.summary.scalar` and its like need the package tensorboard to be installed.
        metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": plugin})
        with self._file_writer.as_default():
            tf.summary.write(name, tf.constant(value), step=int(step), metadata=metadata)
