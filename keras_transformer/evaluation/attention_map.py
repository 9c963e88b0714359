"""Attention maps: the weights of all keys for each query, layer by layer and head by head."""

import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.evaluation.figure import TEXT_COLOUR, new_figure, save_figure

_CELL_INCHES = 0.27
# Long sentences get smaller cells.
_LONGEST_SIDE_INCHES = 18.0
_MAX_COLUMNS = 4
_SMALLEST_FONT = 4.0  # points


def plot_attention(
    weights: Any,
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    path: str | os.PathLike,
    title: str | None = None,
) -> pathlib.Path:
    """Draws attention weights as a map, one small map for every head.

    Rows are target pieces (the queries), columns source pieces (the keys); for self-attention both
    are of the same text. The maps share one colour scale, from 0 to the largest weight. Maps of
    all layers have a row for each layer, and pieces only where there is room for them.

    Args:
        weights: float `[query_length, key_length]`, `[num_heads, query_length, key_length]` or
            `[num_layers, num_heads, query_length, key_length]`: attention after the softmax. Any
            array that NumPy can read.
        source_pieces: key_length texts.
        target_pieces: query_length texts.
        path: the picture to write; .png, .pdf or .svg.
        title: text above the plot.

    Returns:
        `path` as a `pathlib.Path`.

    Raises:
        ValueError: if the shape of `weights` and the numbers of pieces do not agree.
        UserError: if matplotlib is missing, or cannot write such a file.

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
    figure = new_figure(
        width=max(4.0, cell * columns * pieces[1] + 2.4),
        height=max(3.0, cell * rows * pieces[0] + 1.8 + 0.3 * rows),
    )
    if title:
        figure.suptitle(title, color=TEXT_COLOUR, parse_math=False)
    grid = figure.subplots(rows, columns, squeeze=False)
    font_size = min(9.0, 72 * cell * 0.75)
    has_names = font_size >= _SMALLEST_FONT
    for number, axes in enumerate(grid.flat):
        if number >= len(maps):
            axes.set_axis_off()
            continue
        # White lines between the cells, so that a row can be followed to its piece.
        colours = {"cmap": "Blues", "vmin": 0.0, "vmax": weights.max()}
        edges = {"edgecolors": "white" if has_names else "none", "linewidth": 2 * cell}
        mesh = axes.pcolormesh(maps[number], **colours, **edges)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        layer, head = divmod(number, columns) if weights.ndim == 4 else (None, number)
        heading = ("" if layer is None else f"layer {layer + 1}\n") + f"head {head + 1}"
        if weights.ndim > 2:
            axes.set_title(heading, fontsize=9, color=TEXT_COLOUR)
        # Pieces are written once: under the last map of a column, left of the first of a row.
        is_last, is_first = number + columns >= len(maps), number % columns == 0
        _name_cells(axes.xaxis, source_pieces if has_names and is_last else (), font_size)
        _name_cells(axes.yaxis, target_pieces if has_names and is_first else (), font_size)
        axes.tick_params(axis="x", rotation=90)
        for spine in axes.spines.values():
            spine.set_color("#bbbbbb")
    figure.supxlabel("pieces attended to (keys)", fontsize=10, color=TEXT_COLOUR)
    figure.supylabel("attending pieces (queries)", fontsize=10, color=TEXT_COLOUR)
    bar = figure.colorbar(mesh, ax=grid.ravel().tolist(), shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("attention weight", fontsize=10, color=TEXT_COLOUR)
    bar.ax.tick_params(colors=TEXT_COLOUR, labelsize=8)
    bar.outline.set_visible(False)
    return save_figure(figure, path)


def _name_cells(axis, pieces, font_size):
    axis.set_ticks([number + 0.5 for number in range(len(pieces))])
    axis.set_tick_params(length=0)
    # A "$" in a piece is a dollar, not the start of a formula.
    axis.set_ticklabels(pieces, fontsize=font_size, color=TEXT_COLOUR, parse_math=False)
