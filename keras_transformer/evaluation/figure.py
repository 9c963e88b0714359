"""Matplotlib figures without pyplot: no window, no global state."""

import contextlib
import os
import pathlib
import warnings

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write

TEXT_COLOUR = "#333333"
GRID_COLOUR = "#dddddd"


def new_figure(width: float, height: float):
    """Returns an empty figure, sizes in inches, that can only be saved.

    Raises:
        UserError: if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Plots need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure, path: str | os.PathLike, dots_per_inch: int = 150) -> pathlib.Path:
    """Writes a figure to a temporary name and renames it; returns `path` as a `pathlib.Path`.

    Raises:
        UserError: if the ending of the path is not a format that matplotlib writes.
    """
    path = pathlib.Path(path)
    formats = figure.canvas.get_supported_filetypes()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in formats:
        raise UserError(
            f"A plot's file must end in .{', .'.join(sorted(formats))}. Received: {str(path)!r}"
        )
    with atomic_write(path) as temporary, _without_glyph_warnings():
        figure.savefig(temporary, format=kind, dpi=dots_per_inch)
    return path


@contextlib.contextmanager
def _without_glyph_warnings():
    # Pieces may be in any script; a character that the font lacks is drawn as a box.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield
