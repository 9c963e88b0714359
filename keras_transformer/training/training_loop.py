"""The loop of a training: its steps, and what happens between them."""

import contextlib
import dataclasses
import math
import sys
import time

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write
from keras_transformer.layouts import DIVERGED_BATCH_FILE
from keras_transformer.models.micro_batches import num_replicas
from keras_transformer.signals import StopSignals
from keras_transformer.training.callbacks import (
    DivergedError,
    StepProgress,
    StopOnNonFiniteLoss,
    TimeLimit,
    loss_variables,
)
from keras_transformer.training.checkpoints import Progress, step_of
from keras_transformer.training.evaluations import Evaluations
from keras_transformer.training.output_directory import start_directory
from keras_transformer.training.training_run import TrainingRun

# Nats per token: guessing costs the logarithm of the vocabulary size, about 10.
_EXPLODED_LOSS = 100.0


class TrainingLoop(keras.callbacks.Callback):
    """Fits the model of a run to a limit of its settings; saves and evaluates it on the way.

    A checkpoint is restored first. `saved_step` is the step of the state on the disk; 0 if there is
    no state. The first signal in `signals` waits for the end of the step.
    """

    def __init__(self, run: TrainingRun, evaluations: Evaluations, signals: StopSignals):
        super().__init__()
        self.set_model(run.model)
        # `fit` has to leave the weights of the last step, from which a later run continues.
        run.model.optimizer.averages_at_end = False
        run.progress = Progress.from_dict(run.checkpoints.restore_state(run.model) or {})
        run.group.check_equal({"step of the checkpoint": run.progress.step})
        self.saved_step = run.progress.step
        self._run = run
        self._evaluations = evaluations
        self._signals = signals
        self._checkpoint_every = run.settings.checkpoint_every or run.data.steps_per_epoch
        self._time_limit = TimeLimit(run.settings.max_minutes, run.progress.minutes)
        self._steps_in_epoch = run.data.batches.steps_per_epoch(run.progress.epoch)
        self._logs: dict | None = None
        self._start_row: dict | None = None
        if run.progress.step:
            # An interrupted evaluation is repeated: its row, if it was written, is removed.
            last = run.progress.step - bool(run.progress.unfinished_row)
            run.group.in_first(run.history.start, last)
        self._start_window()

    def interruption(self) -> str:
        """Returns a message for an interruption: the checkpoint that the next run continues."""
        if not self.saved_step:
            return "interrupted before the first checkpoint; the next run starts from the beginning"
        return (
            f"interrupted after step {self._run.progress.step:,}; the checkpoint of step "
            f"{self.saved_step:,} is in {str(self._run.checkpoints.directory)!r}, and the next run "
            "goes on from there"
        )

    def fit(self, callbacks, show_progress) -> None:
        """Trains until a limit of the settings is reached; the arguments are those of `train`."""
        run, progress, every = self._run, self._run.progress, self._run.evaluate_every
        if progress.step:
            run.report(f"Resuming after step {progress.step:,}, {progress.minutes:.1f} minutes.")
        run.checkpoints.check_room(run.model)
        if progress.unfinished_row:
            self._evaluate_and_save_state()
        if progress.why_it_ends(run.max_steps, run.settings):
            return
        for line in _introduction(run):
            run.report(line)
        if run.settings.start_from is not None and not progress.step and run.scores:
            self._start_row = self._evaluations.start()
        first = keras.callbacks.LambdaCallback(
            on_train_begin=self._start_window,
            on_epoch_begin=self._restore_loss,
            on_train_batch_end=self._start_directory,
            on_train_end=self._finish_encoding,
        )
        stop = StopOnNonFiniteLoss(every=1, limit=_EXPLODED_LOSS)
        # The loop needs what the callbacks before it find; the board must not time evaluations.
        all_callbacks = [first, run.board, self._time_limit, stop, self]
        if show_progress is not None:
            all_callbacks.append(
                StepProgress(show_progress, run.max_steps, run.data.tokens_per_step)
            )
        options = {
            "callbacks": [*filter(None, all_callbacks), *callbacks],
            "verbose": int(show_progress is None and sys.stdout.isatty()),
        }
        # Keras resets its mean loss in each of its epochs. These end at evaluations, so the first
        # epoch of a run that resumes between two evaluations is shorter, and restores the mean.
        started, steps = divmod(progress.step, every)
        if steps:
            self._fit(started, started + 1, every - steps, options)
            started += 1
        if not self.model.stop_training and progress.step < run.max_steps:
            self._fit(started, math.ceil(run.max_steps / every), every, options)
        self._signals.received = _first(run.group.gather(self._signals.received))
        self._signals.release()
        if reason := progress.why_it_ends(run.max_steps, run.settings):
            if progress.step < (warmup := run.recipe.warmup_steps):
                reason += f" It learned little: the learning rate rises until step {warmup:,}."
            elif progress.evaluations > 1 and not progress.without_gain:
                reason += " The validation was still improving."
            run.report(f"The training ends: {reason}")

    def _fit(self, first_epoch, epochs, steps_per_epoch, options):
        batches, progress = self._run.data.batches, self._run.progress
        try:
            group = self._run.group
            share = group.process_id, group.num_processes
            dataset = batches.dataset(progress.batch, epoch=progress.epoch, share=share)
            self.model.fit(
                dataset,
                initial_epoch=first_epoch,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                shuffle=False,
                **options,
            )
            if self.saved_step != progress.step:  # stopped between two checkpoints
                self._check_weights()
                self._save_state()
        except DivergedError as error:
            # This callback may or may not have counted the step before the error.
            path = self._save_diverged_batch(back=progress.step + 1 - error.step)
            raise UserError(f"{error} The batch of that step is in {str(path)!r}.") from error
        finally:
            self._finish_encoding()  # An exception has skipped `on_train_end`.

    def _finish_encoding(self, logs=None):
        self._run.data.batches.finish_encoding()

    def _start_directory(self, batch, logs=None):
        run = self._run
        if not run.progress.step:  # A failed start leaves nothing behind.
            run.group.in_first(self._write_first_files)
            if self._start_row is not None:
                self._evaluations.write(self._start_row)

    def _write_first_files(self):
        run = self._run
        start_directory(run.output, run.tokenizers, run.settings, run.data.fingerprint)
        if run.held_out is not None:
            run.held_out.save(run.output)
        run.history.start(-1)  # Not even a step 0 of an interrupted run is left.

    def _restore_loss(self, epoch, logs=None):
        """Restores Keras' mean loss from the state, if it began after the same step."""
        progress = self._run.progress
        is_evaluated = progress.step % self._run.evaluate_every == 0
        if not is_evaluated and progress.loss_sums and progress.loss_start == self._loss_start():
            pairs = zip(loss_variables(self.model), progress.loss_sums, strict=True)
            for variable, value in pairs:
                variable.assign(value)

    def _loss_start(self):
        """Returns the step of the last evaluation, after which Keras' mean loss begins."""
        every = self._run.evaluate_every
        return (self._run.progress.step - 1) // every * every

    def _start_window(self, logs=None):
        self._window_start = (self._run.progress.step, time.monotonic())

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        run, progress = self._run, self._run.progress
        self._logs = logs
        progress.step += 1
        progress.batch += 1
        if progress.batch >= self._steps_in_epoch:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self._steps_in_epoch = run.data.batches.steps_per_epoch(progress.epoch)
        self._signals.waits = True
        ends = self.model.stop_training or progress.step >= run.max_steps
        # All processes stop after the same step; a signal from now on is for the next one.
        signal = self._signals.received
        all_end, signals = zip(*run.group.gather([ends, signal]), strict=True)
        ends, signal = any(all_end), _first(signals)
        self._save_weights_and_evaluate(
            saves=ends or progress.step % self._checkpoint_every == 0,
            evaluates=ends or progress.step % run.evaluate_every == 0,
        )
        reason = progress.why_it_ends(run.max_steps, run.settings)
        if ends or reason or signal is not None:
            self._signals.received = signal or self._signals.received
            self.model.stop_training = True

    def complete(self) -> None:
        """Saves and evaluates the weights of the last step, unless that was done before."""
        step, files = self._run.progress.step, self._run.weight_files()
        if not step or (files and step_of(files[-1]) == step):
            return
        rows = self._run.group.in_first(self._run.history.rows)
        is_evaluated = bool(rows) and rows[-1]["step"] == str(step)
        self._save_weights_and_evaluate(saves=True, evaluates=not is_evaluated)

    def _save_weights_and_evaluate(self, saves, evaluates):
        if not (saves or evaluates):
            return
        progress = self._run.progress
        self._check_weights()
        if saves:
            save = self._run.checkpoints.save_weights
            self._run.group.in_first(save, self.model.transformer, progress.step)
        if evaluates:
            progress.unfinished_row = self._training_figures()
        self._evaluate_and_save_state()

    def _evaluate_and_save_state(self):
        progress, is_alone = self._run.progress, self._run.group.num_processes == 1
        try:
            if progress.unfinished_row:
                # Other processes wait for the shares of this one.
                with self._signals.at_once() if is_alone else contextlib.nullcontext():
                    self._evaluations.record(dict(progress.unfinished_row))
                self._start_window()  # The evaluation does not count as time of the steps.
                progress.unfinished_row = None
        except BaseException:
            if is_alone:  # Keep the steps before; other processes do not save with this one.
                self._save_state()
            raise
        self._save_state()  # A run that resumes here does not repeat the evaluation.

    def _save_state(self):
        progress = self._run.progress
        group = self._run.group
        progress.minutes = group.gather(self._time_limit.elapsed_minutes)[0]
        sums = loss_variables(self.model)
        progress.loss_sums = [float(ops.convert_to_numpy(value)) for value in sums] or None
        progress.loss_start = self._loss_start()
        save = self._run.checkpoints.save_state
        group.in_first(save, self.model, dataclasses.asdict(progress))
        self.saved_step = progress.step

    def _check_weights(self):
        # The loss is that before the update, which may have broken the weights.
        for variable in self.model.trainable_variables:
            if not np.isfinite(variable.numpy()).all():
                sign = f"The weights of {variable.path!r} are not finite"
                raise DivergedError(sign, self._run.progress.step)

    def _training_figures(self):
        progress = self._run.progress
        first_step, start = self._window_start
        seconds = max(time.monotonic() - start, 1e-9)
        learning_rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        tokens = (progress.step - first_step) * self._run.data.tokens_per_step
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

    def _save_diverged_batch(self, back):
        """Writes the batch `back` steps before the progress, and the one before; returns the path.

        The update of the previous batch may have broken the weights.
        """
        content = self._batch_before((self._run.progress.epoch, self._run.progress.batch), back)
        position = content["epoch"], content["batch"]
        if position != (0, 0):
            previous = self._batch_before(position, 1)
            content |= {f"previous_{name}": value for name, value in previous.items()}
        path = self._run.output / DIVERGED_BATCH_FILE

        def write():
            with atomic_write(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, **content)

        self._run.group.in_first(write)
        return path

    def _batch_before(self, position, back):
        (epoch, batch), batches = position, self._run.data.batches
        while batch < back:
            epoch -= 1
            batch += batches.steps_per_epoch(epoch)
        batch -= back
        inputs, labels, weights = next(batches.batches(epoch, batch))
        return {**inputs, "labels": labels, "weights": weights, "epoch": epoch, "batch": batch}


def _first(signals):
    """Returns the first signal that a process has got, or None."""
    return next((signal for signal in signals if signal is not None), None)


def _introduction(run):
    """Returns two lines about the model, the device and the plan of the run."""
    settings, model = run.settings, run.model.transformer
    layers = f"{model.config.num_encoder_layers} + {model.config.num_decoder_layers} layers"
    parameters = f"{model.count_params():,} parameters"
    if settings.lora is not None:
        num_trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
        parameters += f", {num_trained:,} trained by LoRA"
    if settings.freeze:
        parameters += f", {' and '.join(settings.freeze)} frozen"
    epochs = run.max_steps / run.data.steps_per_epoch
    plan = f"Training until step {run.max_steps:,} ({epochs:.1f} epochs)"
    if settings.max_minutes is not None:
        plan += f", or for {settings.max_minutes:g} minutes in total"
    if settings.preset is None:
        rate, steps = run.recipe.peak_learning_rate, run.recipe.warmup_steps
        plan += f"; a learning rate of {rate:.2g} after {steps:,} steps"
    plan += f"; validation every {run.evaluate_every:,} steps"
    if settings.patience is not None:
        plan += f", and an end after {settings.patience} of them without gain"
    return [
        f"Model {settings.start_from or settings.preset}: {layers}, d_model "
        f"{model.config.d_model:,}, {parameters}, on {_devices(model)}.",
        f"{plan}. The first step takes longer than the others.",
    ]


def _devices(model):
    kind, count = "CPU", num_replicas(model)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if tf.config.list_physical_devices("GPU") else kind
    elif (distribution := keras.distribution.distribution()) is not None:
        devices = distribution.device_mesh.devices.flatten()
        kind, count = devices[0].partition(":")[0].upper(), len(devices)
    return f"{count} {kind}s" if count > 1 else f"one {kind}" if kind == "GPU" else "the CPU"
