"""Learning curves and attention maps, as Matplotlib figures without pyplot's global state."""

import itertools
import math
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write
from keras_transformer.inference.tasks import all_tasks

TEXT_COLOR = "#333333"
GRID_COLOR = "#dddddd"

# (keys of a history row, label, color); the first key with a value is used. Color-blind readers
# can tell the colors apart.
_LOSSES = (
    (("loss",), "training", "#0072b2"),
    (("train_loss",), "training, label-smoothed", "#0072b2"),
    (("val_loss", "valid_loss"), "validation", "#d55e00"),
)
_SCORE_COLORS = ("#009e73", "#56b4e9", "#e69f00")

# Sizes of attention maps: of a cell, which is smaller in long sentences, and of the longest side.
_CELL_INCHES, _LONGEST_SIDE_INCHES = 0.27, 18.0
_MAX_COLUMNS = 4
_SMALLEST_FONT = 4.0  # points


def plot_learning_curve(
    rows: Iterable[Mapping], path: str | os.PathLike, title: str | None = None
) -> pathlib.Path:
    """Draws the loss, and the scores if there are any, over the training steps; returns the path.

    Args:
        rows: The history, mappings with "step" and any of "loss", "train_loss", "val_loss",
            "valid_loss" (nats per token), and a task's score such as "bleu" or "exact_match" (0 to
            100; also with the prefix "val_" or "valid_"). Values that are no finite numbers, or
            strings of them, are skipped.
        path: The picture to write; .png, .pdf or .svg.
        title: Text above the plot.

    Raises:
        ValueError: If no row has a step and a value.
        UserError: If matplotlib is missing, or cannot write such a file.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.evaluation import plot_learning_curve
    >>> rows = [{"step": 100, "loss": 3.2}, {"step": 200, "loss": 1.4, "bleu": 41.0}]
    >>> plot_learning_curve(rows, pathlib.Path(tempfile.mkdtemp()) / "curve.png").name
    'curve.png'
    """
    rows = list(rows)
    labels = {task.score_name: task.score_label for task in all_tasks()}
    series = [*zip(labels, labels.values(), itertools.cycle(_SCORE_COLORS), strict=False)]
    series.append(("exact_match", "exact match", "#cc79a7"))
    series = [((name, f"val_{name}", f"valid_{name}"), *style) for name, *style in series]
    losses, scores = _curves(rows, _LOSSES), _curves(rows, series)
    panels = [(losses, "loss (nats per token)"), (scores, "score on held-out text")]
    panels = [(curves, label) for curves, label in panels if curves]
    if not panels:
        raise ValueError(
            "The history must have rows with 'step' and one of 'loss', 'val_loss', "
            f"{', '.join(map(repr, labels))}, 'exact_match'. Received: {len(rows)} rows without any"
        )
    figure = new_figure(5.2 * len(panels), 3.8, title)
    for number, (curves, label) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        _draw(axes, curves, label)
        corner = "upper right"  # It stays free: losses fall, and scores rise.
        if curves is scores:
            corner = "lower right"
            # There must be room above 100 for the value at the end of a curve.
            axes.set_ylim(0, 112)
            axes.set_yticks(range(0, 101, 20))
            _write_last_values(axes, curves)
        axes.legend(frameon=False, labelcolor=TEXT_COLOR, loc=corner)
    return save_figure(figure, path)


def _curves(rows, series):
    """Returns (label, color, steps, values) of every series that has a value."""
    curves = []
    for keys, label, color in series:
        points = []
        for row in rows:
            step, *values = (_number(row.get(key)) for key in ("step", *keys))
            values = [value for value in values if value is not None]
            if step is not None and values:
                points.append((step, values[0]))
        if points:
            curves.append((label, color, *zip(*sorted(points), strict=True)))
    return curves


def _number(value):
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _draw(axes, curves, label):
    for name, color, steps, values in curves:
        # Markers show a few points, but would hide the line if there were many.
        style = {"marker": "o" if len(steps) <= 30 else None, "markersize": 4, "linewidth": 1.8}
        axes.plot(steps, values, color=color, label=name, **style)
    axes.set_xlabel("training step", color=TEXT_COLOR)
    axes.set_ylabel(label, color=TEXT_COLOR)
    axes.grid(color=GRID_COLOR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.tick_params(colors=TEXT_COLOR)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlim(left=0)
    if min(min(values) for *_, values in curves) >= 0:
        axes.set_ylim(bottom=0)


def _write_last_values(axes, curves):
    """Writes each curve's last value at its end, the highest above its curve, the rest below."""
    highest = max(values[-1] for *_, values in curves)
    for _, color, steps, values in curves:
        offset, side = (6, "bottom") if values[-1] == highest else (-7, "top")
        position = {"xytext": (0, offset), "textcoords": "offset points", "ha": "right", "va": side}
        style = {"color": color, "fontweight": "bold"}
        axes.annotate(f"{values[-1]:.1f}", (steps[-1], values[-1]), **position, **style)


def plot_attention(
    weights: Any,
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    path: str | os.PathLike,
    title: str | None = None,
) -> pathlib.Path:
    """Draws attention weights as maps, a row of heads for each layer, and returns the path.

    Rows are target pieces (queries) and columns are source pieces (keys). The maps share one color
    scale, from 0 to the largest weight. Large maps are drawn without the pieces.

    Args:
        weights: Attention after the softmax, `[query_length, key_length]`, with one or two axes in
            front: `num_heads`, or `num_layers` and `num_heads`.
        source_pieces, target_pieces: `key_length` and `query_length` strings.
        path, title: As in `plot_learning_curve`.

    Raises:
        ValueError: If the shape of `weights` does not match the numbers of pieces.
        UserError: As in `plot_learning_curve`.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.evaluation import plot_attention
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "map.png"
    >>> plot_attention([[0.9, 0.1], [0.2, 0.8]], ["half", "seven"], ["halb", "sieben"], path).name
    'map.png'

    Reference: Vaswani et al. (2017), figures 3 to 5.
    """
    weights = np.asarray(weights, dtype="float64")
    pieces = (len(target_pieces), len(source_pieces))
    if weights.ndim not in (2, 3, 4) or weights.shape[-2:] != pieces or 0 in weights.shape:
        raise ValueError(
            "weights must end in [query_length, key_length], and may begin with num_heads or "
            "num_layers and num_heads. Received: "
            f"weights.shape={weights.shape}, {pieces[0]} target and {pieces[1]} source pieces"
        )
    maps = weights.reshape(-1, *pieces)
    most = weights.shape[1] if weights.ndim == 4 else _MAX_COLUMNS if len(maps) > 4 else 2
    columns = min(len(maps), most)
    rows = math.ceil(len(maps) / columns)
    cell = min(_CELL_INCHES, _LONGEST_SIDE_INCHES / max(columns * pieces[1], rows * pieces[0]))
    width = max(4.0, cell * columns * pieces[1] + 2.4)
    height = max(3.0, cell * rows * pieces[0] + 1.8 + 0.3 * rows)
    figure = new_figure(width, height, title)
    grid = figure.subplots(rows, columns, squeeze=False)
    font_size = min(9.0, 72 * cell * 0.75)
    has_names = font_size >= _SMALLEST_FONT
    # White lines between the cells guide the eye along a row to its piece.
    edges = {"edgecolors": "white" if has_names else "none", "linewidth": 2 * cell}
    colors = {"cmap": "Blues", "vmin": 0.0, "vmax": weights.max()}
    for number, axes in enumerate(grid.flat):
        if number >= len(maps):
            axes.set_axis_off()
            continue
        mesh = axes.pcolormesh(maps[number], **colors, **edges)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        layer, head = divmod(number, columns) if weights.ndim == 4 else (None, number)
        if weights.ndim > 2:
            heading = ("" if layer is None else f"layer {layer + 1}\n") + f"head {head + 1}"
            axes.set_title(heading, fontsize=9, color=TEXT_COLOR)
        # Pieces are written only under the last map of a column and left of the first map of a row.
        is_last, is_first = number + columns >= len(maps), number % columns == 0
        _name_cells(axes.xaxis, source_pieces if has_names and is_last else (), font_size)
        _name_cells(axes.yaxis, target_pieces if has_names and is_first else (), font_size)
        axes.tick_params(axis="x", rotation=90)
        for spine in axes.spines.values():
            spine.set_color("#bbbbbb")
    figure.supxlabel("pieces attended to (keys)", fontsize=10, color=TEXT_COLOR)
    figure.supylabel("attending pieces (queries)", fontsize=10, color=TEXT_COLOR)
    bar = figure.colorbar(mesh, ax=grid.ravel().tolist(), shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("attention weight", fontsize=10, color=TEXT_COLOR)
    bar.ax.tick_params(colors=TEXT_COLOR, labelsize=8)
    bar.outline.set_visible(False)
    return save_figure(figure, path)


def _name_cells(axis, pieces, font_size):
    axis.set_ticks([number + 0.5 for number in range(len(pieces))])
    axis.set_tick_params(length=0)
    # A "$" in a piece is a dollar, not the start of a formula.
    axis.set_ticklabels(pieces, fontsize=font_size, color=TEXT_COLOR, parse_math=False)


def new_figure(width: float, height: float, title: str | None = None):
    """Returns an empty figure, with its size in inches, that can be saved but not shown."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Plots need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, color=TEXT_COLOR, parse_math=False)
    return figure


def save_figure(figure, path: str | os.PathLike) -> pathlib.Path:
    """Writes a figure in the format of the path's suffix; returns the path."""
    path = pathlib.Path(path)
    formats = figure.canvas.get_supported_filetypes()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in formats:
        rule = f"A plot's file must end in .{', .'.join(sorted(formats))}"
        raise UserError(f"{rule}. Received: {str(path)!r}")
    with atomic_write(os.path.realpath(path)) as temporary, warnings.catch_warnings():
        # Pieces may be in any script; a character that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure.savefig(temporary, format=kind, dpi=150)
    return path
