"""The evaluations of a training on its validation set: scores, figures, the best weights."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_transformer.errors import UserError
from keras_transformer.models.weight_files import (
    WEIGHTS_SUFFIX,
    average_checkpoints,
    load_weights_only,
    save_weights_only,
)
from keras_transformer.training.callbacks import TensorBoardLog
from keras_transformer.training.checkpoints import step_of
from keras_transformer.training.metrics import TokenEvaluator
from keras_transformer.training.plan import TrainingPlan
from keras_transformer.training.processes import process_group
from keras_transformer.training.state import TrainingState

_LOGGER = logging.getLogger(__name__)
_FIGURES = {
    "step": "step {:,}",
    "epoch": "epoch {:g}",
    "minutes": "{:.1f} min",
    "train_loss": "loss {:.3f}",
}
_VALID_FIGURES = {
    "loss": "loss {:.3f}",
    "perplexity": "perplexity {:.2f}",
    "accuracy": "accuracy {:.1%}",
}


class Evaluations:
    """Evaluates the model of a training and records the figures.

    Of the current weights and the average of checkpoints, those with the lower loss are scored. The
    weights with the best score are saved in `checkpoints.best_path`.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        state: TrainingState,
        board: TensorBoardLog | None,
        report: Callable[[str], object],
    ):
        self._plan = plan
        self._state = state
        self._board = board
        self._report = report
        self._group = process_group()
        self._model = state.model.transformer
        self._score: Any = plan.scores.get("valid")
        self._evaluator = TokenEvaluator(self._model, self._group)

    def loss(self) -> Any:
        """Returns the cross-entropy per token on the validation set, a float; None without one."""
        batches = self._plan.data.valid_batches.get("valid")
        return None if batches is None else self._evaluator(batches).loss

    def start(self) -> dict:
        """Returns the row of the model to start from, step 0, and reports it."""
        row = {"step": 0, "epoch": 0.0, "minutes": 0.0, "averaged": 1}
        row |= self._all_figures(self._plan.scores)
        self._report_row(row)
        return row

    def record(self, row: dict) -> None:
        """Adds a row to the history, with the figures of the validation sets, and reports it.

        The best figures in the progress of the run are updated.
        """
        if self._plan.data.valid_batches:
            self._evaluate(row)
            self._state.progress.evaluations += 1
        self.write(row)
        self._report_row(row)

    def write(self, row: dict) -> None:
        """Adds a row to the history and to TensorBoard's."""
        if self._group.is_first:
            self._state.history.append(row)
        if self._board is not None:
            self._board.write_evaluation(row, self._plan.data.valid_batches)

    def _report_row(self, row):
        texts = [text.format(row[name]) for name, text in _FIGURES.items() if name in row]
        lines = [self._figures_text(row, name) for name in self._plan.scores]
        texts += lines[:1]
        if "tokens_per_second" in row:
            texts.append(f"{row['tokens_per_second']:,} tokens/s")
        self._report("  ".join(texts))
        for line in lines[1:]:
            self._report(line)
        if self._score is not None and f"valid_{self._score.name}" in row:
            for line in self._score.sample_lines():
                self._report(line)

    def _figures_text(self, row, name):
        texts = [text.format(row[f"{name}_{key}"]) for key, text in _VALID_FIGURES.items()]
        score = self._plan.scores[name]
        if score is not None and f"{name}_{score.name}" in row:
            labels = {score.name: score.label, **score.figure_labels}
            texts += [f"{label} {row[f'{name}_{key}']:.2f}" for key, label in labels.items()]
            if row.get("averaged", 1) > 1:
                texts[-1] += f" (average of {row['averaged']})"
        return f"{name} {'  '.join(texts)}"

    def _add_figures(self, row, name):
        """Adds the figures of a validation set to `row`, without its score; returns its loss."""
        result = self._evaluator(self._plan.data.valid_batches[name])
        row[f"{name}_loss"] = round(result.loss, 5)
        row[f"{name}_perplexity"] = round(result.perplexity, 4)
        row[f"{name}_accuracy"] = round(result.accuracy, 5)
        return result.loss

    def _add_score(self, row, name):
        score = self._plan.scores[name]
        if score is not None:
            if self._score is not None:
                score.pipeline = self._score.pipeline  # whose search is compiled
            figures = {score.name: score.evaluate(self._model), **score.figures()}
            row |= {f"{name}_{key}": round(value, 3) for key, value in figures.items()}

    def _all_figures(self, names):
        row: dict = {}
        for name in names:
            self._add_figures(row, name)
            self._add_score(row, name)
        return row

    def _evaluate(self, row):
        """Adds the validation figures to `row`, with the scores if they are due."""
        progress, score = self._state.progress, self._score
        losses = {name: self._add_figures(row, name) for name in self._plan.scores}
        row["averaged"], loss = 1, losses["valid"]
        gains = progress.best_loss is None or loss < progress.best_loss
        if gains:
            progress.best_loss = loss
            if score is None:  # The loss chooses the weights.
                self._save_weights(self._state.checkpoints.best_path)
        if score is not None and (progress.evaluations + 1) % score.every == 0:
            gains = self._evaluate_scores(row, loss) or gains
        progress.without_gain = 0 if gains else progress.without_gain + 1

    def _evaluate_scores(self, row, loss):
        """Scores the better of weights and average; returns whether the score is the best yet."""
        progress = self._state.progress
        current = [(variable, _value(variable)) for variable in self._model.variables]
        row["averaged"] = self._load_average_if_better(loss, current)
        for name in self._plan.scores:
            self._add_score(row, name)
        score = row[f"valid_{self._score.name}"]
        # Processes that do not draw would not compute with this one.
        if self._board is not None and self._group.num_processes == 1:
            self._board.write_samples(row["step"], self._score)
        is_best = progress.best_score is None or score > progress.best_score
        if is_best:
            self._save_weights(self._state.checkpoints.best_path)
            progress.best_score, progress.best_step = score, progress.step
        _assign(current)
        return is_best

    def _load_average_if_better(self, loss, current):
        """Loads the average of checkpoints if its loss is lower; returns their number, else 1."""
        files = self._state.weight_files()[-self._plan.average_windows[0] :]
        if len(files) < 2:
            return 1
        path = self._state.checkpoints.directory / f"average{WEIGHTS_SUFFIX}"
        if problem := self._group.in_first(_average, files, path):
            _LOGGER.warning("The average is left out: %s", problem)
            return 1
        load_weights_only(self._model, path)
        self._group.gather(None)  # All have read it.
        path.unlink(missing_ok=True)
        if self.loss() < loss:
            return len(files)
        _assign(current)
        return 1

    def _save_weights(self, path):
        self._group.in_first(save_weights_only, self._model, path)

    def choose_final_weights(self) -> float | None:
        """Loads the best weights of a finished training; returns their score, if it was computed.

        The candidates are averages of the last checkpoints, the last one, the best one at an
        evaluation, and the moving average. Files that cannot be read are left out with a warning.
        Without `select_best` or a validation set, the average over the first window is chosen.
        """
        checkpoints = self._state.checkpoints
        files = self._state.weight_files()
        if not files:
            raise UserError("No step was trained: allow more steps or minutes.")
        score = self._score
        selects = self._plan.settings.select_best and bool(self._plan.data.valid_batches)
        candidates: list[tuple[float, str, Path]] = []
        errors: list[UserError] = []
        # As a list, because LoRA's moving average belongs to the matrices before any are loaded.
        for name, path, size in list(self._candidates(files)):
            if not selects and (candidates or path == checkpoints.best_path):
                break
            error = self._load_candidate(name, path, files[-size:])
            if error is not None:
                errors.append(error)
                continue
            candidates.append((self._quality(name) if selects else 0.0, name, path))
        if not candidates:
            raise errors[-1]
        # Of equal candidates, `max` returns the first: the average over the first window.
        quality, name, path = max(candidates, key=lambda candidate: candidate[0])
        load_weights_only(self._model, path)
        self._group.gather(None)  # All have read it.
        for path in checkpoints.directory.glob(f"average-*{WEIGHTS_SUFFIX}"):
            path.unlink(missing_ok=True)
        self._report(f"Final weights: {name}.")
        for name in list(self._plan.scores)[1:]:
            self._report(self._figures_text(self._all_figures([name]), name))
        if score is None:
            return None
        return quality if selects else score.evaluate(self._model)

    def _load_candidate(self, name, path, files):
        """Loads the weights, or the average of several files; returns the error if that fails."""
        problem = self._group.in_first(_average, files, path) if len(files) > 1 else None
        try:
            if problem:
                raise UserError(problem)
            load_weights_only(self._model, path)
        except UserError as damage:
            if self._group.num_processes > 1 and not problem:
                raise  # Other processes may have read the file.
            _LOGGER.warning("The weights of %s are left out: %s", name, damage)
            return damage
        return None

    def _quality(self, name):
        """Returns the score of the loaded weights, or minus their loss; the higher, the better."""
        score = self._score
        if score is None:
            loss = self.loss()
            self._report(f"{name}: validation loss {loss:.3f}")
            return -loss
        quality = score.evaluate(self._model)
        others = [f"{score.figure_labels[k]} {v:.2f}" for k, v in score.figures().items()]
        self._report("  ".join([f"{name}: {score.label} {quality:.2f}", *others]))
        return quality

    def _candidates(self, files):
        """Yields name, path and number of averaged checkpoints of every candidate."""
        directory, optimizer = self._state.checkpoints.directory, self._state.model.optimizer
        windows = [min(window, len(files)) for window in self._plan.average_windows]
        for size in dict.fromkeys([*windows, 1]):
            if size == 1:
                yield f"step {step_of(files[-1])}", files[-1], 1
            else:
                path = directory / f"average-{size}{WEIGHTS_SUFFIX}"
                yield f"average of the last {size} checkpoints", path, size
        if self._group.in_first(self._state.checkpoints.best_path.is_file):
            yield "best at an evaluation", self._state.checkpoints.best_path, 1
        if optimizer.use_ema:
            optimizer.averages_at_end = True
            optimizer.finalize_variable_values(self._state.model.trainable_variables)
            path = directory / f"average-moving{WEIGHTS_SUFFIX}"
            self._save_weights(path)
            yield "moving average of the weights", path, 1


def _average(files, path) -> str | None:
    """Writes the average of checkpoints; returns the problem if one cannot be read."""
    try:
        average_checkpoints(files, path)
        return None
    except UserError as problem:
        return str(problem)


def _value(variable):
    """Returns a value to assign later; an array of JAX is neither copied nor exchanged."""
    return variable.value if keras.backend.backend() == "jax" else variable.numpy()


def _assign(values):
    for variable, value in values:
        variable.assign(value)
