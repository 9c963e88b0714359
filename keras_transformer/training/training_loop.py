"""The loop of a training: its steps, and what happens between them."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import StopSignals, UserError
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.callbacks import (
    DivergedError,
    StopOnNonFiniteLoss,
    TimeLimit,
    loss_sums,
    save_diverged_batch,
    set_loss_sums,
)
from keras_transformer.training.checkpoints import Checkpoints, Progress, step_of
from keras_transformer.training.evaluations import Evaluations
from keras_transformer.training.loss_model import LossModel
from keras_transformer.training.training_data import TrainingData

# Nats per token: guessing costs the logarithm of the vocabulary size, about 10.
_EXPLODED_LOSS = 100.0


class TrainingLoop(keras.callbacks.Callback):
    """Fits a model to a limit of the settings; saves and evaluates it at the steps that they say.

    `progress` is the state of the training, `saved_step` the step of the state on the disk, and 0
    without one. A first signal in `signals` waits for the end of the step.
    """

    def __init__(
        self,
        model: LossModel,
        data: TrainingData,
        settings: TrainingSettings,
        max_steps: int,
        checkpoints: Checkpoints,
        evaluations: Evaluations,
        signals: StopSignals,
        report: Callable[[str], object],
    ):
        super().__init__()
        self.set_model(model)
        # `fit` has to leave the weights of the last step, from which a later run goes on.
        model.optimizer.averages_at_end = False
        self.progress = Progress.from_dict(checkpoints.restore_state(model) or {})
        self.saved_step = self.progress.step
        self.evaluate_every = settings.evaluate_every or data.steps_per_epoch
        self._checkpoint_every = settings.checkpoint_every or data.steps_per_epoch
        self._data = data
        self._settings = settings
        self._max_steps = max_steps
        self._checkpoints = checkpoints
        self.evaluations = evaluations
        self._signals = signals
        self._report = report
        self._time_limit = TimeLimit(settings.max_minutes, self.progress.minutes)
        self._steps_in_epoch = data.batches.steps_per_epoch(self.progress.epoch)
        self._logs: dict | None = None
        if self.progress.step:
            # An interrupted evaluation is repeated: its row, if it was written, is removed.
            evaluations.history.start(self.progress.step - bool(self.progress.unfinished_row))
        self.on_train_begin()

    def interruption(self) -> str:
        """Returns a message for an interruption: the checkpoint that the next run goes on from."""
        if not self.saved_step:
            return "interrupted before the first checkpoint; the next run starts from the beginning"
        return (
            f"interrupted after step {self.progress.step:,}; the checkpoint of step "
            f"{self.saved_step:,} is in {str(self._checkpoints.directory)!r}, and the next run "
            "goes on from there"
        )

    def fit(
        self,
        before: Sequence[keras.callbacks.Callback],
        after: Sequence[keras.callbacks.Callback],
        introduction: Sequence[str] = (),
        verbose: int = 0,
    ) -> None:
        """Trains until a limit of the settings is reached.

        The callbacks `before` and `after` run before and after this one; the lines of
        `introduction` are reported before the first step, if there is one.
        """
        progress = self.progress
        if progress.step:
            self._report(f"Resuming after step {progress.step:,}, {progress.minutes:.1f} minutes.")
        self._checkpoints.check_room(self.model)
        if progress.unfinished_row:
            self._evaluate_and_save_state()
        if progress.why_it_ends(self._max_steps, self._settings):
            return
        for line in introduction:
            self._report(line)
        # Before the other callbacks, which read the mean loss.
        restores = keras.callbacks.LambdaCallback(on_epoch_begin=self._restore_loss)
        stop = StopOnNonFiniteLoss(every=1, limit=_EXPLODED_LOSS)
        ends = keras.callbacks.LambdaCallback(on_train_end=self._finish_encoding)
        # The loop comes late: it sees whether the time is up, and no other callback times it.
        callbacks = [restores, *before, self._time_limit, stop, self, *after, ends]
        # Keras resets its mean loss in each of its epochs. These end at evaluations, so the first
        # epoch of a run that resumes between two evaluations is shorter, and restores the mean.
        every = self.evaluate_every
        started, steps = divmod(progress.step, every)
        if steps:
            self._fit(callbacks, started, started + 1, every - steps, verbose)
            started += 1
        if not self.model.stop_training and progress.step < self._max_steps:
            epochs = math.ceil(self._max_steps / every)
            self._fit(callbacks, started, epochs, every, verbose)
        self._signals.release()

    def _fit(self, callbacks, first_epoch, epochs, steps_per_epoch, verbose):
        batches, progress = self._data.batches, self.progress
        try:
            dataset = batches.dataset(start_step=progress.batch, epoch=progress.epoch)
            self.model.fit(
                dataset.map(LossModel.arrange),
                initial_epoch=first_epoch,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                callbacks=callbacks,
                shuffle=False,
                verbose=verbose,
            )
            if self.saved_step != progress.step:  # stopped between two checkpoints
                self._check_weights()
                self._save_state()
        except DivergedError as error:
            # This callback may or may not have counted the step before the error.
            back = progress.step + 1 - error.step
            position = (progress.epoch, progress.batch)
            path = save_diverged_batch(self._checkpoints.directory.parent, batches, position, back)
            raise UserError(f"{error} The batch of that step is in {str(path)!r}.") from error
        finally:
            self._finish_encoding()  # An exception has skipped `on_train_end`.

    def _finish_encoding(self, logs=None):
        self._data.batches.finish_encoding()

    def _restore_loss(self, epoch, logs=None):
        """Sets Keras' mean loss to that of the state, if it began after the same step."""
        progress = self.progress
        begins = progress.step % self.evaluate_every == 0
        if not begins and progress.loss_sums and progress.loss_start == self._loss_start():
            set_loss_sums(self.model, progress.loss_sums)

    def _loss_start(self) -> int:
        """Returns the step after which Keras' mean loss begins, that of the last evaluation."""
        return (self.progress.step - 1) // self.evaluate_every * self.evaluate_every

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._window_start = (self.progress.step, time.monotonic())

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._logs = logs
        progress = self.progress
        progress.step += 1
        progress.batch += 1
        if progress.batch >= self._steps_in_epoch:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self._steps_in_epoch = self._data.batches.steps_per_epoch(progress.epoch)
        self._signals.waits = True
        if progress.step >= self._max_steps:
            self.model.stop_training = True
        ends = self.model.stop_training
        self._save_and_evaluate(
            saves=ends or progress.step % self._checkpoint_every == 0,
            evaluates=ends or progress.step % self.evaluate_every == 0,
        )
        reason = progress.why_it_ends(self._max_steps, self._settings)
        if reason and not self.model.stop_training:
            self._report(f"The training ends: {reason}")
            self.model.stop_training = True
        if self._signals.received is not None:
            self.model.stop_training = True

    def complete(self) -> None:
        """Saves and evaluates the weights of the last step, unless that was done before."""
        step, files = self.progress.step, self._checkpoints.weight_files()
        if not step or (files and step_of(files[-1]) == step):
            return
        rows = self.evaluations.history.rows()
        is_evaluated = bool(rows) and rows[-1]["step"] == str(step)
        self._save_and_evaluate(saves=True, evaluates=not is_evaluated)

    def _save_and_evaluate(self, saves: bool, evaluates: bool):
        if not (saves or evaluates):
            return
        self._check_weights()
        if saves:
            self._checkpoints.save_weights(self.model.transformer, self.progress.step)
        if evaluates:
            self.progress.unfinished_row = self._training_figures()
        self._evaluate_and_save_state()

    def _evaluate_and_save_state(self):
        progress = self.progress
        try:
            if progress.unfinished_row:
                with self._signals.at_once():
                    self.evaluations.record(dict(progress.unfinished_row), progress)
                self.on_train_begin()  # The evaluation does not count as time of the steps.
                progress.unfinished_row = None
        finally:
            # After the evaluation, so that a run that resumes here does not repeat it; and even if
            # it fails or is interrupted, so that the steps before it are not lost.
            self._save_state()

    def _save_state(self):
        self.progress.minutes = self._time_limit.elapsed_minutes
        self.progress.loss_sums = loss_sums(self.model)
        self.progress.loss_start = self._loss_start()
        self._checkpoints.save_state(self.model, dataclasses.asdict(self.progress))
        self.saved_step = self.progress.step

    def _check_weights(self):
        # The loss was computed before the update, which may have broken the weights.
        for variable in self.model.trainable_variables:
            if not np.isfinite(variable.numpy()).all():
                sign = f"The weights of {variable.path!r} are not finite"
                raise DivergedError(sign, self.progress.step)

    def _training_figures(self) -> dict:
        progress = self.progress
        first_step, start = self._window_start
        seconds = max(time.monotonic() - start, 1e-9)
        learning_rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        tokens = (progress.step - first_step) * self._data.tokens_per_step
        row = {
            "step": progress.step,
            "epoch": round(progress.epoch + progress.batch / self._steps_in_epoch, 3),
            "minutes": round(self._time_limit.elapsed_minutes, 3),
            "learning_rate": f"{learning_rate:.6g}",
            "tokens_per_second": round(tokens / seconds),
        }
        if self._logs and "loss" in self._logs:
            row["train_loss"] = round(float(self._logs["loss"]), 5)
        return row
