"""Matplotlib figures without pyplot: no window, no global state."""

import os
import pathlib
import warnings

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write

TEXT_COLOUR = "#333333"
GRID_COLOUR = "#dddddd"


def new_figure(width: float, height: float):
    """Returns an empty figure, sizes in inches, that can only be saved."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Plots need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure, path: str | os.PathLike) -> pathlib.Path:
    """Writes a figure in the format of the path's ending; returns the path."""
    path = pathlib.Path(path)
    formats = figure.canvas.get_supported_filetypes()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in formats:
        raise UserError(
            f"A plot's file must end in .{', .'.join(sorted(formats))}. Received: {str(path)!r}"
        )
    with atomic_write(path) as temporary, warnings.catch_warnings():
        # Pieces may be in any script; a character that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure.savefig(temporary, format=kind, dpi=150)
    return path
