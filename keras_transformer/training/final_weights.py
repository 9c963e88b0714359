"""The choice of the final weights of a training: averages of checkpoints, or the best so far."""

import logging
from collections.abc import Callable
from pathlib import Path

from keras_transformer.errors import UserError
from keras_transformer.models.weight_files import load_weights_only
from keras_transformer.training.averaging import WEIGHTS_SUFFIX, average_checkpoints
from keras_transformer.training.checkpoints import step_of

_LOGGER = logging.getLogger(__name__)


def choose_final_weights(
    run, score: Callable[[], float] | None, score_text: Callable[[float], str]
) -> float:
    """Loads the best weights of a finished training into its model; returns their score.

    The candidates are the averages of the last checkpoints, one for each window, the last
    checkpoint alone, and the best weights seen at an evaluation. Without a score, the average over
    the first window is chosen. Files that cannot be read are left out with a warning.
    """
    checkpoints, best_path = run.checkpoints, run.loop.best_path
    files = checkpoints.weight_files()
    if not files:
        raise UserError("No step was trained: allow more steps or minutes.")
    candidates = []
    error = None
    for name, path, size in _files(checkpoints.directory, files, run.windows, best_path):
        if score is None and (candidates or path == best_path):
            break
        try:
            if size > 1:
                average_checkpoints(files[-size:], path)
            load_weights_only(run.model, path)
        except UserError as problem:
            error = problem
            _LOGGER.warning("The weights of %s are left out: %s", name, problem)
            continue
        value = 0.0 if score is None else score()
        if score is not None:
            run.report(f"{name}: {score_text(value)}")
        candidates.append((value, name, path))
    if not candidates:
        raise error or UserError(f"No weights can be read in {str(checkpoints.directory)!r}.")
    # The first of equals: the average over the recipe's window.
    value, name, path = max(candidates, key=lambda candidate: candidate[0])
    load_weights_only(run.model, path)
    for path in checkpoints.directory.glob(f"average-*{WEIGHTS_SUFFIX}"):
        path.unlink(missing_ok=True)
    run.report(f"Final weights: {name}.")
    return value


def _files(directory: Path, files: list[Path], windows, best_path: Path):
    """Yields name, path and number of averaged checkpoints of every candidate."""
    last = (f"step {step_of(files[-1])}", files[-1], 1)
    for size in dict.fromkeys([min(window, len(files)) for window in windows] + [1]):
        path = directory / f"average-{size}{WEIGHTS_SUFFIX}"
        yield last if size == 1 else (f"average of the last {size} checkpoints", path, size)
    if best_path.is_file():
        yield "best at an evaluation", best_path, 1
