"""What happens between steps of `train`: evaluations, checkpoints, the history."""

import dataclasses
import time
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import StopSignals
from keras_transformer.files import atomic_write
from keras_transformer.models.weight_files import load_weights_only, save_weights_only
from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.callbacks import HistoryFile, TimeLimit
from keras_transformer.training.checkpoints import Checkpoints, step_of
from keras_transformer.training.divergence import DivergedError, check_loss_is_finite
from keras_transformer.training.metrics import TokenEvaluator
from keras_transformer.training.progress import Progress
from keras_transformer.training.score_on_dev import ScoreOnDev


def history_columns(score_name: str) -> tuple[str, ...]:
    """Returns the columns of a history.

    Args:
        score_name: that of the score on the validation set, `"bleu"` or `"f1"`.

    Returns:
        Names of columns.
    """
    return (
        "step",
        "epoch",
        "minutes",
        "train_loss",
        "learning_rate",
        "tokens_per_second",
        "valid_loss",
        "valid_perplexity",
        "valid_accuracy",
        f"valid_{score_name}",
        "averaged",
    )


class EvaluationLoop(keras.callbacks.Callback):
    """Evaluates and saves at the steps that the settings say.

    At an evaluation the loss on the validation set is taken of the current weights and, if
    several checkpoints are to be averaged, of their average; the better one is scored. The best
    weights by this score stay in `best.weights.h5`.

    Args:
        data: `TrainingData`.
        settings: `TrainingSettings`.
        checkpoints: `Checkpoints`.
        history: `HistoryFile`.
        time_limit: `TimeLimit`, which knows the minutes used.
        evaluator: `TokenEvaluator` of the model.
        score: `ScoreOnDev`, or None without one.
        recipe: `TrainingRecipe`.
        progress: `Progress` of the runs before.
        report: called with one line per evaluation.
        signals: `StopSignals`, which may raise in an evaluation and wait in a step.
        board: `TensorBoardLog` that the figures and samples go to as well, or None.

    Raises:
        UserError: in training, before anything is saved, if the loss or a weight is no number.
    """

    def __init__(
        self,
        data,
        settings,
        checkpoints: Checkpoints,
        history: HistoryFile,
        time_limit: TimeLimit,
        evaluator: TokenEvaluator,
        score: ScoreOnDev | None,
        recipe,
        progress: Progress,
        report: Callable[[str], object],
        signals: StopSignals,
        board=None,
    ):
        super().__init__()
        self.progress = progress
        self.best_path = checkpoints.directory / "best.weights.h5"
        self._average_path = checkpoints.directory / "average.weights.h5"
        self._data = data
        self._checkpoints = checkpoints
        self._history = history
        self._time_limit = time_limit
        self._score = score
        self._window = (settings.average_windows or (recipe.average_checkpoints,))[0]
        self.total_steps = settings.max_steps or recipe.max_steps
        self._report = report
        self._signals = signals
        self.saved_step = progress.step  # that of the state on the disk
        self._board = board
        self._settings = settings
        self.evaluate_every = settings.evaluate_every or data.steps_per_epoch
        self._checkpoint_every = settings.checkpoint_every or data.steps_per_epoch
        self._evaluator = evaluator
        self._steps_in_epoch = data.batches.steps_per_epoch(progress.epoch)
        self._window_start = (progress.step, time.monotonic())
        self._logs = None

    def on_train_begin(self, logs=None):
        self._window_start = (self.progress.step, time.monotonic())

    def on_train_batch_end(self, batch, logs=None):
        self._logs = logs
        progress = self.progress
        progress.step += 1
        progress.batch += 1
        if progress.batch >= self._steps_in_epoch:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self._steps_in_epoch = self._data.batches.steps_per_epoch(progress.epoch)
        self._signals.waits = True
        if progress.step >= self.total_steps:
            self.model.stop_training = True
        self._save_and_evaluate(logs, ends=self.model.stop_training)
        reason = progress.why_it_ends(self.total_steps, self._settings)
        if reason and not self.model.stop_training:
            self._report(f"The training ends: {reason}")
            self.model.stop_training = True
        if self._signals.received is not None:
            self.model.stop_training = True

    def _save_and_evaluate(self, logs, ends: bool):
        step = self.progress.step
        saves = ends or step % self._checkpoint_every == 0
        evaluates = ends or step % self.evaluate_every == 0
        if not (saves or evaluates):
            return
        self._check_finite(logs)
        if saves:
            self._checkpoints.save_weights(self._evaluator.model, step)
        if evaluates:
            self.progress.unfinished_row = self._training_figures(logs)
        self._evaluate_and_save_state()

    def finish_evaluation(self):
        """Does again the evaluation that was broken off, if the run before ended in one."""
        if self.progress.unfinished_row:
            self._evaluate_and_save_state()

    def _evaluate_and_save_state(self):
        try:
            if self.progress.unfinished_row:
                with self._signals.at_once():
                    self._evaluate(dict(self.progress.unfinished_row))
                self.progress.unfinished_row = None
        finally:
            # After the evaluation, so that it is not done again by a run that resumes here; and
            # even if it fails, or is interrupted, the steps before it are not lost.
            self._save_state()

    def _save_state(self):
        self.progress.minutes = self._time_limit.elapsed_minutes
        self._checkpoints.save_state(self.model, dataclasses.asdict(self.progress))
        self.saved_step = self.progress.step

    def save(self):
        """Saves the state of a run that was stopped between two checkpoints."""
        if self.saved_step != self.progress.step:
            self._check_finite(None)
            self._save_state()

    def complete(self):
        """Saves the weights of the last step and evaluates them, unless that was done before."""
        step = self.progress.step
        files = self._checkpoints.weight_files()
        if not step or (files and step_of(files[-1]) == step):
            return
        self._check_finite(None)
        self._checkpoints.save_weights(self._evaluator.model, step)
        rows = self._history.rows()
        if not rows or rows[-1]["step"] != str(step):
            self.progress.unfinished_row = self._training_figures(self._logs)
            self._evaluate_and_save_state()

    def _check_finite(self, logs):
        step = self.progress.step
        check_loss_is_finite(logs, step)
        # The loss is of the weights before the update, which may have broken them.
        for variable in self.model.trainable_variables:
            if not np.isfinite(variable.numpy()).all():
                raise DivergedError(f"The weights of {variable.path!r} are no numbers", step)

    def _training_figures(self, logs) -> dict:
        progress = self.progress
        first_step, start = self._window_start
        seconds = max(time.monotonic() - start, 1e-9)
        learning_rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        row = {
            "step": progress.step,
            "epoch": round(progress.epoch + progress.batch / self._steps_in_epoch, 3),
            "minutes": round(self._time_limit.elapsed_minutes, 3),
            "learning_rate": f"{learning_rate:.6g}",
            "tokens_per_second": round(
                (progress.step - first_step) * self._data.tokens_per_step / seconds
            ),
        }
        if logs and "loss" in logs:
            row["train_loss"] = round(float(logs["loss"]), 5)
        return row

    def _evaluate(self, row):
        progress = self.progress
        if self._data.valid_batches is not None:
            scores = self._score and (progress.evaluations + 1) % self._score.every == 0
            self._evaluate_on_dev(row, scores)
        self._history.append(row)
        if self._board is not None:
            self._board.write_evaluation(row)
        self._report(_line(row, self._score))
        if f"valid_{self._score and self._score.name}" in row:
            for line in self._score.sample_lines():
                self._report(line)
        self._window_start = (progress.step, time.monotonic())
        if self._data.valid_batches is not None:
            progress.evaluations += 1

    def _evaluate_on_dev(self, row, scores):
        result = self._evaluator(self._data.valid_batches)
        row.update(
            valid_loss=round(result.loss, 5),
            valid_perplexity=round(result.perplexity, 4),
            valid_accuracy=round(result.accuracy, 5),
            averaged=1,
        )
        progress = self.progress
        gains = progress.best_loss is None or result.loss < progress.best_loss
        if gains:
            progress.best_loss = result.loss
        if scores:
            gains = self._score_on_dev(row, result.loss) or gains
        progress.without_gain = 0 if gains else progress.without_gain + 1

    def _score_on_dev(self, row, loss) -> bool:
        """Scores the better of the weights and their average; returns whether it is the best."""
        current = [(variable, variable.numpy()) for variable in self._evaluator.model.variables]
        try:
            row["averaged"] = self._load_average_if_better(loss, current)
            score = round(self._score.evaluate(self._evaluator.model), 3)
            row[f"valid_{self._score.name}"] = score
            if self._board is not None:
                self._board.write_samples(row["step"], self._score)
            return self._keep_best(score)
        finally:
            _assign(current)

    def _load_average_if_better(self, loss, current) -> int:
        """Returns over how many checkpoints the model's weights are averaged now."""
        files = self._checkpoints.weight_files()[-self._window :]
        if len(files) < 2:
            return 1
        load_weights_only(self._evaluator.model, average_checkpoints(files, self._average_path))
        self._average_path.unlink()
        if self._evaluator(self._data.valid_batches).loss < loss:
            return len(files)
        _assign(current)
        return 1

    def _keep_best(self, score) -> bool:
        progress = self.progress
        if progress.best_score is not None and score <= progress.best_score:
            return False
        with atomic_write(self.best_path) as temporary:
            save_weights_only(self._evaluator.model, temporary)
        progress.best_score, progress.best_step = score, progress.step
        return True


def _assign(values):
    for variable, value in values:
        variable.assign(value)


def _line(row, score: ScoreOnDev | None) -> str:
    parts = [f"step {row['step']:,}", f"epoch {row['epoch']:g}", f"{row['minutes']:.1f} min"]
    if "train_loss" in row:
        parts.append(f"loss {row['train_loss']:.3f}")
    if "valid_loss" in row:
        parts.append(f"valid loss {row['valid_loss']:.3f}")
        parts.append(f"perplexity {row['valid_perplexity']:.2f}")
        parts.append(f"accuracy {row['valid_accuracy']:.1%}")
    if score is not None and f"valid_{score.name}" in row:
        suffix = f" (average of {row['averaged']})" if row["averaged"] > 1 else ""
        parts.append(f"{score.label} {row[f'valid_{score.name}']:.2f}{suffix}")
    parts.append(f"{row['tokens_per_second']:,} tokens/s")
    return "  ".join(parts)
