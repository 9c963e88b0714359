"""`TrainingState`: all that changes in a training, and its files."""

import csv
import dataclasses
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import atomic_write, read_small_file, remove
from keras_transformer.layouts import (
    CHECKPOINT_FOLDER,
    DIVERGED_BATCH_FILE,
    HISTORY_FILE,
    LARGEST_HISTORY,
    TOKENIZER_FILES,
)
from keras_transformer.losses import LossModel
from keras_transformer.models import Transformer
from keras_transformer.models.micro_batches import num_replicas
from keras_transformer.training.adaptation import enable_lora
from keras_transformer.training.callbacks import (
    DivergedError,
    RoundCallbacks,
    TimeLimit,
    loss_variables,
)
from keras_transformer.training.checkpoints import Checkpoints, Progress
from keras_transformer.training.compilation import compile_model
from keras_transformer.training.distribution import strategy_scope
from keras_transformer.training.plan import Round, TrainingPlan
from keras_transformer.training.processes import process_group


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
            text = read_small_file(self.path, LARGEST_HISTORY).decode("utf-8")
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


class TrainingState:
    """The model of a training, its progress and its files.

    Args:
        plan: `TrainingPlan`.
        strategy: Strategy of several devices for the model; None for one device.
        report: Called with messages.

    Attributes:
        model: `LossModel`. A checkpoint holds its variables and those of its optimizer.
        progress: `Progress`, in the checkpoint too.
        saved_step: Step of the last checkpoint; 0 if there is none.
        clock: `TimeLimit`, which counts the minutes of all runs.
        checkpoints, history: The files.
    """

    def __init__(self, plan: TrainingPlan, strategy: Any, report: Callable[[str], object]):
        self.plan, self._report = plan, report
        self.checkpoints = Checkpoints(plan.output / CHECKPOINT_FOLDER, plan.keep_checkpoints)
        self.history = HistoryFile(plan.output / HISTORY_FILE, _columns(plan))
        keras.utils.set_random_seed(plan.settings.seed)
        if plan.settings.deterministic:
            import tensorflow as tf

            tf.config.experimental.enable_op_determinism()
        with strategy_scope(strategy):
            self.model = _make_model(plan, report)
        # `fit` has to leave the weights of the last step, from which a later run continues.
        self.model.optimizer.averages_at_end = False
        self.progress = Progress(validation_id=plan.validation_id)
        if plan.resumes:
            self._restore()
        self.saved_step = self.progress.step
        self.clock = TimeLimit(plan.settings.max_minutes, self.progress.minutes)
        replicas = num_replicas(self.model)
        self._batches = _BatchesOfRounds(plan.data.batches, self.progress, replicas)
        self._window_start: tuple[int, float] | None = None  # step and time

    def _restore(self):
        group = process_group()
        self.progress = Progress.from_dict(self.checkpoints.restore_state(self.model) or {})
        group.check_equal({"step of the checkpoint": self.progress.step})
        progress, validation_id = self.progress, self.plan.validation_id
        if progress.validation_id not in (None, validation_id):
            self._report("The validation set or its scores changed: earlier results do not count.")
            progress.best_loss = progress.best_score = None
            progress.best_step = progress.without_gain = 0
        progress.validation_id = validation_id
        # An interrupted evaluation is repeated: its row, if it was written, is removed.
        if group.is_first:
            step = self.progress.step
            self.history.start(step - 1 if self.progress.unfinished_row else step)
            # Some settings may differ from those of the last run.
            self.plan.saved_settings.save(self.plan.output, self.plan.fingerprint)

    def fit(self, round_: Round, callbacks: RoundCallbacks) -> Round:
        """Trains to the end of a round, or to a stop; returns the round that was done.

        The first files are written after the first step: a start that fails leaves nothing behind.

        Raises:
            UserError: If the loss or a weight is not finite, or the loss is above a limit.
        """
        progress, every = self.progress, self.plan.evaluate_every
        steps = round_.end - progress.step
        # For Keras, an epoch is the steps between two evaluations.
        period, first_batch = divmod(progress.step, every)
        # The mean loss continues where the last round stopped, within the same period.
        goes_on = first_batch and progress.loss_start == period * every
        sums = progress.loss_sums if goes_on else None
        callbacks.start_round(first_batch, round_.evaluates, sums)
        self._window_start = self._window_start or (progress.step, time.monotonic())
        try:
            self.model.fit(
                self._batches.take(steps),
                initial_epoch=period,
                epochs=period + 1,
                steps_per_epoch=steps,
                shuffle=False,
                callbacks=callbacks,
            )
            step = int(self.model.optimizer.iterations.numpy())
            self._check_weights(step)
        except DivergedError as error:
            path = self._save_diverged_batch(error.step)
            raise UserError(f"{error} The batch of that step is in {str(path)!r}.") from error
        if not progress.step:
            self._write_first_files()
        self._advance(step)
        if self.model.stop_training and callbacks.signal is None:
            return Round(step, saves=True, evaluates=True)
        return round_ if step == round_.end else Round(step, saves=False, evaluates=False)

    def _advance(self, step):
        """Counts the steps of a round in the progress, and keeps the sums of the mean loss."""
        progress, every = self.progress, self.plan.evaluate_every
        batch = progress.batch + step - progress.step
        progress.epoch, progress.batch = self.plan.data.batches.position(batch, progress.epoch)
        progress.step = step
        sums = [float(ops.convert_to_numpy(value)) for value in loss_variables(self.model)]
        progress.loss_sums, progress.loss_start = sums or None, (step - 1) // every * every

    def _write_first_files(self):
        plan = self.plan
        if process_group().is_first:
            # Remove what a run left that wrote no checkpoint.
            remove(plan.output / CHECKPOINT_FOLDER)
            for name in TOKENIZER_FILES:
                (plan.output / name).unlink(missing_ok=True)
            # The settings come first, because they tell which program wrote the other files.
            plan.saved_settings.save(plan.output, plan.fingerprint)
            plan.tokenizers.save(plan.output)
            if plan.held_out is not None:
                plan.held_out.save(plan.output)
            # This drops the row of step 0 of an interrupted run, too.
            self.history.start(-1)

    def _check_weights(self, step):
        # The loss was computed before the update, which may have broken the weights.
        for variable in self.model.trainable_variables:
            if not np.isfinite(variable.numpy()).all():
                raise DivergedError(f"The weights of {variable.path!r} are not finite", step)

    def _save_diverged_batch(self, step):
        """Writes the batch of a step of this round, and the one before; returns the path.

        The update of the previous batch may have broken the weights.
        """
        content = self._batch_of(step)
        if step > 1:
            previous = self._batch_of(step - 1)
            content |= {f"previous_{name}": value for name, value in previous.items()}
        path = self.plan.output / DIVERGED_BATCH_FILE
        if not self.progress.step:
            self._write_first_files()
        if process_group().is_first:
            with atomic_write(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, **content)
        return path

    def _batch_of(self, step):
        progress, batches = self.progress, self.plan.data.batches
        epoch, batch = progress.epoch, progress.batch + step - 1 - progress.step
        if batch < 0:  # The round began at the beginning of an epoch.
            epoch -= 1
            batch += batches.steps_per_epoch(epoch)
        epoch, batch = batches.position(batch, epoch)
        inputs, labels, weights = next(batches.batches(epoch, batch))
        return {**inputs, "labels": labels, "weights": weights, "epoch": epoch, "batch": batch}

    def training_row(self) -> dict:
        """Returns the figures of the steps since the last evaluation, a row of the history."""
        progress = self.progress
        first_step, start = self._window_start or (progress.step, time.monotonic())
        tokens = (progress.step - first_step) * self.plan.data.tokens_per_step
        steps_in_epoch = self.plan.data.batches.steps_per_epoch(progress.epoch)
        learning_rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        row = {
            "step": progress.step,
            "epoch": round(progress.epoch + progress.batch / steps_in_epoch, 3),
            "minutes": round(self.clock.elapsed_minutes, 3),
            "learning_rate": f"{learning_rate:.6g}",
            "tokens_per_second": round(tokens / max(time.monotonic() - start, 1e-9)),
        }
        self._window_start = None  # The evaluation does not count as time of the steps.
        if progress.loss_sums and progress.loss_sums[1]:
            # Keras computes its mean in this precision.
            total, count = np.array(progress.loss_sums, "float32")
            row["train_loss"] = round(float(total / count), 5)
        return row

    def weight_files(self) -> list[Path]:
        """Returns the weight files of the checkpoints, oldest first, as process 0 sees them."""
        return [*map(Path, process_group().in_first(self.checkpoints.weight_files))]

    def save_weights(self) -> None:
        """Writes the weights, in process 0, for averages of checkpoints."""
        if process_group().is_first:
            self.checkpoints.save_weights(self.model.transformer, self.progress.step)

    def save(self) -> None:
        """Writes the state that the next run goes on from, in process 0."""
        group, progress = process_group(), self.progress
        progress.minutes = group.in_first(lambda: self.clock.elapsed_minutes)
        if group.is_first:
            self.checkpoints.save_state(self.model, dataclasses.asdict(progress))
        self.saved_step = progress.step


class _BatchesOfRounds:
    """The batches of a training from its progress on, in a dataset for each `fit`."""

    def __init__(self, batches, progress, num_replicas):
        self._batches, self._progress = batches, progress
        self._has_one_iterator = num_replicas == 1
        self._dataset: Any = None
        self._steps: Any = None  # variable: steps of the round

    def take(self, steps: int) -> Any:
        """Returns a dataset of the next batches."""
        if not self._has_one_iterator:
            # Keras reads a batch before the first step of `fit`, which would be lost for the next.
            return self._rest()
        if self._dataset is None:
            self._make_iterator()
        self._steps.assign(steps)
        return self._dataset

    def _rest(self):
        group, progress = process_group(), self._progress
        share = group.process_id, group.num_processes
        return self._batches.dataset(progress.batch, epoch=progress.epoch, share=share)

    def _make_iterator(self):
        """Makes one iterator for all rounds: making one takes as long as several small steps."""
        import tensorflow as tf

        rest = iter(self._rest())
        with tf.device("CPU"):
            self._steps = tf.Variable(0, dtype="int64")
        numbers = tf.data.Dataset.counter().take_while(lambda number: number < self._steps)
        # `fit` deletes an iterator of each round; see `TokenBatches.dataset`.
        options = tf.data.Options()
        options.autotune.enabled = False
        self._dataset = numbers.map(lambda number: next(rest)).with_options(options)


def _columns(plan):
    """Returns the columns of the history."""
    figures = ["loss", "perplexity", "accuracy", plan.task.score_name]
    figures += getattr(plan.scores.get("valid"), "figure_labels", ())
    columns = ["step", "epoch", "minutes", "train_loss", "learning_rate", "tokens_per_second"]
    columns += [f"valid_{name}" for name in figures] + ["averaged"]
    return columns + [f"{s}_{name}" for s in plan.scores if s != "valid" for name in figures]


def _make_model(plan, report):
    settings, recipe = plan.settings, plan.recipe
    policy = "mixed_bfloat16" if settings.mixed_precision else None
    transformer = Transformer(plan.config, policy)
    if plan.start is not None and not plan.resumes:
        plan.start.copy_weights(transformer, report)
    for part in settings.freeze or ():
        names = ("source_embedding", "target_embedding") if part == "embedding" else (part,)
        for name in names:
            getattr(transformer, name).trainable = False
    if settings.lora is not None:
        enable_lora(transformer, settings.lora)
    packed = bool(plan.data.packed_width)
    model = LossModel(transformer, recipe.label_smoothing, packed=packed, r_drop=recipe.r_drop)
    model.micro_batches, model.streams = settings.micro_batches, settings.streams
    return compile_model(model, recipe, jit_compile=settings.jit_compile)
