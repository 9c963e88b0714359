"""Which weights a training ends with: averages of checkpoints against the best so far."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.checkpoints import Checkpoints, load_weights_only, step_of


class Candidate(NamedTuple):
    """Weights that could be the final ones: a name for people, the file, its score."""

    name: str
    path: Path
    score: float


def choose_final_weights(
    model,
    checkpoints: Checkpoints,
    windows,
    best_path: Path,
    score: Callable[[], float] | None,
    report: Callable[[str], object],
) -> Candidate | None:
    """Loads the best weights of a finished training into its model.

    The candidates are the averages of the last checkpoints, one for each window, the last
    checkpoint alone, and the best weights seen at an evaluation. Without a score the average over
    the first window is taken.

    Args:
        model: the model that was trained.
        checkpoints: `Checkpoints`.
        windows: sequence of int, numbers of last checkpoints to average.
        best_path: weights that were best at an evaluation; may be missing.
        score: scores the weights that are loaded, higher is better; or None.
        report: called with a line for each candidate.

    Returns:
        The `Candidate` that is loaded now, or None if there is no checkpoint.
    """
    files = checkpoints.weight_files()
    if not files:
        return None
    candidates: list[Candidate] = []
    sizes = dict.fromkeys([min(window, len(files)) for window in windows] + [1])
    for number, size in enumerate(sizes):
        if score is None and number:
            break
        path = files[-1]
        name = f"step {step_of(path)}"
        if size > 1:
            path = checkpoints.directory / f"average-{size}.weights.h5"
            path = average_checkpoints(files[-size:], path)
            name = f"average of the last {size} checkpoints"
        candidates.append(_scored(model, name, path, score, report))
    if score is not None and best_path.is_file():
        candidates.append(_scored(model, "best at an evaluation", best_path, score, report))
    # The first of equals: the average over the recipe's window.
    chosen = max(candidates, key=lambda candidate: candidate.score)
    load_weights_only(model, chosen.path)
    for candidate in candidates:
        if candidate.path.name.startswith("average-"):
            candidate.path.unlink(missing_ok=True)
    report(f"Final weights: {chosen.name}.")
    return chosen


def _scored(model, name, path, score, report) -> Candidate:
    if score is None:
        return Candidate(name, path, 0.0)
    load_weights_only(model, path)
    value = score()
    report(f"{name}: {value:.2f}")
    return Candidate(name, path, value)
