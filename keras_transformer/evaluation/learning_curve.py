"""The learning curve: loss and scores over the steps of training."""

import itertools
import math
import os
import pathlib
from collections.abc import Iterable, Mapping

from keras_transformer.evaluation.figure import GRID_COLOUR, TEXT_COLOUR, new_figure, save_figure
from keras_transformer.inference.tasks import get_task, task_names

# (keys of a history row, label, colour); of several keys the first one present is taken. The
# colours can be told apart by colour-blind readers too.
_LOSSES = (
    (("loss",), "training", "#0072b2"),
    (("train_loss",), "training, label-smoothed", "#0072b2"),
    (("val_loss", "valid_loss"), "validation", "#d55e00"),
)
_SCORE_COLOURS = ("#009e73", "#56b4e9", "#e69f00")


def plot_learning_curve(
    rows: Iterable[Mapping], path: str | os.PathLike, title: str | None = None
) -> pathlib.Path:
    """Draws loss, and scores where there are any, over the training steps.

    Args:
        rows: the history, one mapping per entry with "step" and any of "loss", "val_loss" (nats per
            token), the score of a task such as "bleu", "exact_match" (0 to 100); also with the
            prefix "val_" or "valid_". Values may be numbers or their text; missing ones, None, ""
            and not-a-number are skipped.
        path: the picture to write; .png, .pdf or .svg.
        title: text above the plot.

    Returns:
        `path` as a `pathlib.Path`.

    Raises:
        ValueError: if no row has a step and a value.
        UserError: if matplotlib is missing, or cannot write such a file.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.evaluation import plot_learning_curve
    >>> rows = [{"step": 100, "loss": 3.2}, {"step": 200, "loss": 1.4, "bleu": 41.0}]
    >>> plot_learning_curve(rows, pathlib.Path(tempfile.mkdtemp()) / "curve.png").name
    'curve.png'
    """
    rows = list(rows)
    labels = {task.score_name: task.score_label for task in map(get_task, task_names())}
    series = [*zip(labels, labels.values(), itertools.cycle(_SCORE_COLOURS), strict=False)]
    series.append(("exact_match", "exact match", "#cc79a7"))
    series = [((name, f"val_{name}", f"valid_{name}"), *style) for name, *style in series]
    losses, scores = _curves(rows, _LOSSES), _curves(rows, series)
    panels = [(losses, "loss (nats per token)"), (scores, "score on held-out text")]
    panels = [panel for panel in panels if panel[0]]
    if not panels:
        raise ValueError(
            "The history must have rows with 'step' and one of 'loss', 'val_loss', "
            f"{', '.join(map(repr, labels))}, 'exact_match'. Received: {len(rows)} rows without any"
        )
    figure = new_figure(width=5.2 * len(panels), height=3.8)
    if title:
        figure.suptitle(title, color=TEXT_COLOUR, parse_math=False)
    for number, (curves, label) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        _draw(axes, curves, label)
        if curves is scores:
            # Room above 100 for the figure at the end of a curve.
            axes.set_ylim(0, 112)
            axes.set_yticks(range(0, 101, 20))
            _write_last_values(axes, curves)
        # Losses fall and scores rise: these corners stay free.
        corner = "lower right" if curves is scores else "upper right"
        axes.legend(frameon=False, labelcolor=TEXT_COLOUR, loc=corner)
    return save_figure(figure, path)


def _curves(rows, series):
    """Returns (label, colour, steps, values) of every series that has a value."""
    curves = []
    for keys, label, colour in series:
        points = []
        for row in rows:
            step, *values = (_number(row.get(key)) for key in ("step", *keys))
            values = [value for value in values if value is not None]
            if step is not None and values:
                points.append((step, values[0]))
        if points:
            curves.append((label, colour, *zip(*sorted(points), strict=True)))
    return curves


def _number(value):
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _draw(axes, curves, label):
    for name, colour, steps, values in curves:
        # A few points are shown one by one; many only as a line.
        marker = "o" if len(steps) <= 30 else None
        axes.plot(
            steps, values, color=colour, label=name, linewidth=1.8, marker=marker, markersize=4
        )
    axes.set_xlabel("training step", color=TEXT_COLOUR)
    axes.set_ylabel(label, color=TEXT_COLOUR)
    axes.grid(color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.tick_params(colors=TEXT_COLOUR)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlim(left=0)
    if min(min(values) for *_, values in curves) >= 0:
        axes.set_ylim(bottom=0)


def _write_last_values(axes, curves):
    """Writes each curve's last value at its end, the highest above its curve, the rest below."""
    highest = max(values[-1] for *_, values in curves)
    for _, colour, steps, values in curves:
        above = values[-1] == highest
        axes.annotate(
            f"{values[-1]:.1f}",
            (steps[-1], values[-1]),
            xytext=(0, 6 if above else -7),
            textcoords="offset points",
            ha="right",
            va="bottom" if above else "top",
            color=colour,
            fontweight="bold",
        )
