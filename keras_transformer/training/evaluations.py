"""The evaluations of a training: figures on the validation set, their history, the best weights."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write
from keras_transformer.models.weight_files import (
    WEIGHTS_SUFFIX,
    average_checkpoints,
    load_weights_only,
    save_weights_only,
)
from keras_transformer.training.callbacks import HistoryFile
from keras_transformer.training.checkpoints import Checkpoints, Progress, step_of
from keras_transformer.training.loss_model import LossModel
from keras_transformer.training.metrics import TokenEvaluator
from keras_transformer.training.tensorboard_log import TensorBoardLog

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


@dataclasses.dataclass(eq=False)
class Evaluations:
    """Evaluates the model of a training and records the figures.

    Of the current weights and the average of checkpoints, those with the lower loss are scored. The
    weights with the best score are saved in `checkpoints.best_path`.
    """

    model: keras.Model  # the `Transformer`
    batches: Any  # list of the batches of the validation set, or None
    score: Any  # `ScoreOnDev`, or None
    checkpoints: Checkpoints
    window: int  # number of last checkpoints to average
    history: HistoryFile
    board: TensorBoardLog | None
    report: Callable[[str], object]

    def __post_init__(self):
        self._evaluator = TokenEvaluator(self.model)

    def loss(self) -> float | None:
        """Returns the cross-entropy per token on the validation set; None without one."""
        return None if self.batches is None else self._evaluator(self.batches).loss

    def record(self, row: dict, progress: Progress) -> None:
        """Adds a row to the history, with the figures of the validation set, and reports it.

        The best figures in `progress` are updated.
        """
        score_line = None if self.batches is None else self._evaluate(row, progress)
        self.history.append(row)
        if self.board is not None:
            self.board.write_evaluation(row)
        texts = [text.format(row[name]) for name, text in _FIGURES.items() if name in row]
        texts += [] if score_line is None else [score_line]
        self.report("  ".join([*texts, f"{row['tokens_per_second']:,} tokens/s"]))
        if score_line is not None:
            for line in self.score.sample_lines():
                self.report(line)
        if self.batches is not None:
            progress.evaluations += 1

    def _evaluate(self, row, progress) -> str | None:
        """Adds the validation figures to `row`; returns a text with the score if one was due."""
        result = self._evaluator(self.batches)
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
        if self.score is not None and (progress.evaluations + 1) % self.score.every == 0:
            gains = self._evaluate_score(row, progress, result.loss) or gains
            line = f"{self.score.label} {row[f'valid_{self.score.name}']:.2f}"
            if row["averaged"] > 1:
                line += f" (average of {row['averaged']})"
        progress.without_gain = 0 if gains else progress.without_gain + 1
        return line

    def _evaluate_score(self, row, progress, loss) -> bool:
        """Scores the better of weights and average; returns whether the score is the best yet."""
        current = [(variable, variable.numpy()) for variable in self.model.variables]
        try:
            row["averaged"] = self._load_average_if_better(loss, current)
            score = round(self.score.evaluate(self.model), 3)
            row[f"valid_{self.score.name}"] = score
            if self.board is not None:
                self.board.write_samples(row["step"], self.score)
            is_best = progress.best_score is None or score > progress.best_score
            if is_best:
                with atomic_write(self.checkpoints.best_path) as temporary:
                    save_weights_only(self.model, temporary)
                progress.best_score, progress.best_step = score, progress.step
            return is_best
        finally:
            _assign(current)

    def _load_average_if_better(self, loss, current) -> int:
        """Loads the average of checkpoints if its loss is lower; returns their number, else 1."""
        files = self.checkpoints.weight_files()[-self.window :]
        if len(files) < 2:
            return 1
        path = self.checkpoints.directory / f"average{WEIGHTS_SUFFIX}"
        try:
            average_checkpoints(files, path)
        except UserError as problem:
            _LOGGER.warning("The average is left out: %s", problem)
            return 1
        load_weights_only(self.model, path)
        path.unlink()
        if self.loss() < loss:
            return len(files)
        _assign(current)
        return 1

    def choose_final_weights(
        self, model: LossModel, windows: Sequence[int], select_best: bool
    ) -> float | None:
        """Loads the best weights of a finished training; returns their score, if it was computed.

        The candidates are averages of the last checkpoints, the last one, the best one at an
        evaluation, and the moving average. Files that cannot be read are left out with a warning.
        Without `select_best` or a validation set, the average over the first window is chosen.
        """
        files = self.checkpoints.weight_files()
        if not files:
            raise UserError("No step was trained: allow more steps or minutes.")
        selects = select_best and self.batches is not None
        candidates: list[tuple[float, str, Path]] = []
        for name, path, size in self._candidates(model, files, windows):
            if not selects and (candidates or path == self.checkpoints.best_path):
                break
            try:
                if size > 1:
                    average_checkpoints(files[-size:], path)
                load_weights_only(self.model, path)
            except UserError as problem:
                error = problem
                _LOGGER.warning("The weights of %s are left out: %s", name, problem)
                continue
            quality = 0.0
            if selects and self.score is not None:
                quality = self.score.evaluate(self.model)
                self.report(f"{name}: {self.score.label} {quality:.2f}")
            elif selects:
                quality = -self._evaluator(self.batches).loss
                self.report(f"{name}: validation loss {-quality:.3f}")
            candidates.append((quality, name, path))
        if not candidates:
            raise error
        # Of equal candidates, `max` returns the first: the average over the first window.
        quality, name, path = max(candidates, key=lambda candidate: candidate[0])
        load_weights_only(self.model, path)
        for path in self.checkpoints.directory.glob(f"average-*{WEIGHTS_SUFFIX}"):
            path.unlink(missing_ok=True)
        self.report(f"Final weights: {name}.")
        return quality if selects or self.score is None else self.score.evaluate(self.model)

    def _candidates(self, model, files: list[Path], windows):
        """Yields name, path and number of averaged checkpoints of every candidate."""
        for size in dict.fromkeys([min(window, len(files)) for window in windows] + [1]):
            path = files[-1].with_name(f"average-{size}{WEIGHTS_SUFFIX}")
            last = (f"step {step_of(files[-1])}", files[-1], 1)
            yield last if size == 1 else (f"average of the last {size} checkpoints", path, size)
        if self.checkpoints.best_path.is_file():
            yield "best at an evaluation", self.checkpoints.best_path, 1
        if model.optimizer.use_ema:
            model.optimizer.averages_at_end = True
            model.optimizer.finalize_variable_values(model.trainable_variables)
            path = files[-1].with_name(f"average-moving{WEIGHTS_SUFFIX}")
            with atomic_write(path) as temporary:
                save_weights_only(self.model, temporary)
            yield "moving average of the weights", path, 1


def _assign(values):
    for variable, value in values:
        variable.assign(value)
