"""The evaluations and checkpoints of a training, between its steps."""

import dataclasses
import logging
import time

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write
from keras_transformer.models.weight_files import load_weights_only, save_weights_only
from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.callbacks import DivergedError, loss_sums, set_loss_sums
from keras_transformer.training.checkpoints import step_of

_LOGGER = logging.getLogger(__name__)
_FIGURES = {
    "step": "step {:,}",
    "epoch": "epoch {:g}",
    "minutes": "{:.1f} min",
    "train_loss": "loss {:.3f}",
    "valid_loss": "valid loss {:.3f}",
    "valid_perplexity": "perplexity {:.2f}",
    "valid_accuracy": "accuracy {:.1%}",
}


def history_columns(score_name: str) -> tuple[str, ...]:
    """Returns the columns of a history; `score_name` is a task's, such as "bleu" or "f1"."""
    training = ("step", "epoch", "minutes", "train_loss", "learning_rate", "tokens_per_second")
    validation = ("loss", "perplexity", "accuracy", score_name)
    return (*training, *(f"valid_{name}" for name in validation), "averaged")


class EvaluationLoop(keras.callbacks.Callback):
    """Evaluates the model and saves checkpoints at the steps that the settings say.

    Of the current weights and the average of checkpoints, those with the lower loss are scored.
    `best.weights.h5` has the weights with the best score.
    """

    def __init__(self, run):
        super().__init__()
        self.progress = run.progress
        self.saved_step = run.progress.step  # of the state on the disk
        self.best_path = run.checkpoints.directory / "best.weights.h5"
        self.evaluate_every = run.settings.evaluate_every or run.data.steps_per_epoch
        self._run = run
        self._valid_batches = run.data.valid_batches
        self._checkpoint_every = run.settings.checkpoint_every or run.data.steps_per_epoch
        self._steps_in_epoch = run.data.batches.steps_per_epoch(run.progress.epoch)
        self._logs = None
        self.on_train_begin()

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._window_start = (self.progress.step, time.monotonic())

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._logs = logs
        progress = self.progress
        progress.step += 1
        progress.batch += 1
        if progress.batch >= self._steps_in_epoch:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self._steps_in_epoch = self._run.data.batches.steps_per_epoch(progress.epoch)
        self._run.signals.waits = True
        if progress.step >= self._run.total_steps:
            self.model.stop_training = True
        self._save_and_evaluate(logs, ends=self.model.stop_training)
        reason = progress.why_it_ends(self._run.total_steps, self._run.settings)
        if reason and not self.model.stop_training:
            self._run.report(f"The training ends: {reason}")
            self.model.stop_training = True
        if self._run.signals.received is not None:
            self.model.stop_training = True

    def _save_and_evaluate(self, logs, ends: bool):
        step = self.progress.step
        saves = ends or step % self._checkpoint_every == 0
        evaluates = ends or step % self.evaluate_every == 0
        if not (saves or evaluates):
            return
        self._check_weights()
        if saves:
            self._run.checkpoints.save_weights(self._run.model, step)
        if evaluates:
            self.progress.unfinished_row = self._training_figures(logs)
        self._evaluate_and_save_state()

    def _loss_start(self) -> int:
        """Returns the step after which Keras' mean loss begins, that of the last evaluation."""
        return (self.progress.step - 1) // self.evaluate_every * self.evaluate_every

    def restore_loss(self) -> None:
        """Sets Keras' mean loss to that of the state, if it began after the same step."""
        progress = self.progress
        begins = progress.step % self.evaluate_every == 0
        if not begins and progress.loss_sums and progress.loss_start == self._loss_start():
            set_loss_sums(self.model, progress.loss_sums)

    def finish_evaluation(self) -> None:
        """Repeats the evaluation that the previous run was interrupted in, if there is one."""
        if self.progress.unfinished_row:
            self._evaluate_and_save_state()

    def _evaluate_and_save_state(self):
        try:
            if self.progress.unfinished_row:
                with self._run.signals.at_once():
                    self._evaluate(dict(self.progress.unfinished_row))
                self.progress.unfinished_row = None
        finally:
            # After the evaluation, so that a run that resumes here does not repeat it; and even if
            # it fails or is interrupted, so that the steps before it are not lost.
            self._save_state()

    def _save_state(self):
        self.progress.minutes = self._run.time_limit.elapsed_minutes
        self.progress.loss_sums = loss_sums(self.model)
        self.progress.loss_start = self._loss_start()
        self._run.checkpoints.save_state(self.model, dataclasses.asdict(self.progress))
        self.saved_step = self.progress.step

    def save(self) -> None:
        """Saves the state of a run that was stopped between two checkpoints."""
        if self.saved_step != self.progress.step:
            self._check_weights()
            self._save_state()

    def complete(self) -> None:
        """Saves and evaluates the weights of the last step, unless that was done before."""
        step = self.progress.step
        files = self._run.checkpoints.weight_files()
        if not step or (files and step_of(files[-1]) == step):
            return
        self._check_weights()
        self._run.checkpoints.save_weights(self._run.model, step)
        rows = self._run.history.rows()
        if not rows or rows[-1]["step"] != str(step):
            self.progress.unfinished_row = self._training_figures(self._logs)
            self._evaluate_and_save_state()

    def _check_weights(self):
        # The loss was computed before the update, which may have broken the weights.
        for variable in self.model.trainable_variables:
            if not np.isfinite(variable.numpy()).all():
                sign = f"The weights of {variable.path!r} are not finite"
                raise DivergedError(sign, self.progress.step)

    def _training_figures(self, logs) -> dict:
        progress = self.progress
        first_step, start = self._window_start
        seconds = max(time.monotonic() - start, 1e-9)
        learning_rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        tokens = (progress.step - first_step) * self._run.data.tokens_per_step
        row = {
            "step": progress.step,
            "epoch": round(progress.epoch + progress.batch / self._steps_in_epoch, 3),
            "minutes": round(self._run.time_limit.elapsed_minutes, 3),
            "learning_rate": f"{learning_rate:.6g}",
            "tokens_per_second": round(tokens / seconds),
        }
        if logs and "loss" in logs:
            row["train_loss"] = round(float(logs["loss"]), 5)
        return row

    def _evaluate(self, row):
        run, progress = self._run, self.progress
        validates = self._valid_batches is not None
        score_line = self._evaluate_on_dev(row) if validates else None
        run.history.append(row)
        if run.board is not None:
            run.board.write_evaluation(row)
        parts = [text.format(row[name]) for name, text in _FIGURES.items() if name in row]
        parts += [] if score_line is None else [score_line]
        run.report("  ".join([*parts, f"{row['tokens_per_second']:,} tokens/s"]))
        if score_line is not None:
            for line in run.score.sample_lines():
                run.report(line)
        self._window_start = (progress.step, time.monotonic())
        if validates:
            progress.evaluations += 1

    def _evaluate_on_dev(self, row) -> str | None:
        """Adds the validation figures to `row`; returns a text with the score if one was due."""
        run, progress = self._run, self.progress
        result = run.evaluator(self._valid_batches)
        row.update(
            valid_loss=round(result.loss, 5),
            valid_perplexity=round(result.perplexity, 4),
            valid_accuracy=round(result.accuracy, 5),
            averaged=1,
        )
        gains = progress.best_loss is None or result.loss < progress.best_loss
        if gains:
            progress.best_loss = result.loss
        line = None
        if run.score is not None and (progress.evaluations + 1) % run.score.every == 0:
            gains = self._score_on_dev(row, result.loss) or gains
            line = f"{run.score.label} {row[f'valid_{run.score.name}']:.2f}"
            if row["averaged"] > 1:
                line += f" (average of {row['averaged']})"
        progress.without_gain = 0 if gains else progress.without_gain + 1
        return line

    def _score_on_dev(self, row, loss) -> bool:
        """Scores the better of weights and average; returns whether the score is the best yet."""
        run = self._run
        current = [(variable, variable.numpy()) for variable in run.model.variables]
        try:
            row["averaged"] = self._load_average_if_better(loss, current)
            score = round(run.score.evaluate(run.model), 3)
            row[f"valid_{run.score.name}"] = score
            if run.board is not None:
                run.board.write_samples(row["step"], run.score)
            is_best = run.progress.best_score is None or score > run.progress.best_score
            if is_best:
                with atomic_write(self.best_path) as temporary:
                    save_weights_only(run.model, temporary)
                run.progress.best_score, run.progress.best_step = score, run.progress.step
            return is_best
        finally:
            _assign(current)

    def _load_average_if_better(self, loss, current) -> int:
        """Loads the average of checkpoints if its loss is lower; returns their number, else 1."""
        run = self._run
        files = run.checkpoints.weight_files()[-run.windows[0] :]
        if len(files) < 2:
            return 1
        path = run.checkpoints.directory / "average.weights.h5"
        try:
            average_checkpoints(files, path)
        except UserError as problem:
            _LOGGER.warning("The average is left out: %s", problem)
            return 1
        load_weights_only(run.model, path)
        path.unlink()
        if run.evaluator(self._valid_batches).loss < loss:
            return len(files)
        _assign(current)
        return 1


def _assign(values):
    for variable, value in values:
        variable.assign(value)
