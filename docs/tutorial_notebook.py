"""Draws the diagrams of tutorial.ipynb into it; with `--run`, also runs it and stores its outputs.

A diagram is an `<img>` with its data in a Markdown cell of its own, because Colab shows neither
files beside a notebook nor attachments. The id of the cell is the name of the function that draws.
"""

import base64
import io
import json
import pathlib
import sys
import tempfile

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from PIL import Image

NOTEBOOK = pathlib.Path(__file__).with_name("tutorial.ipynb")
TEXT, LINE = "#222222", "#555555"
# Colors by kind of layer, all light enough for dark text; white behind, in every theme.
ATTENTION, NORM, FEED_FORWARD, EMBEDDING = "#fde0b9", "#f3f1bd", "#c9e4f6", "#f9d4d8"
OUTPUT, PANEL = "#d3ebd0", "#f1f1f4"


class Canvas:
    """A picture in pixels, with (0, 0) at the top left."""

    def __init__(self, width, height):
        self.figure = Figure(figsize=(width / 100, height / 100), facecolor="white")
        FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.set_axis_off()

    def box(self, x, y, text, color, width=150, height=34, size=13):
        """A layer, with its center at (x, y)."""
        corner = (x - width / 2, y - height / 2)
        style = {"facecolor": color, "edgecolor": LINE, "linewidth": 1, "zorder": 2}
        shape = "round,pad=0,rounding_size=7"
        self.axes.add_patch(FancyBboxPatch(corner, width, height, shape, **style))
        self.text(x, y, text, size)

    def panel(self, left, top, right, bottom):
        """The background of what belongs together."""
        shape, corner = "round,pad=0,rounding_size=12", (left, top)
        style = {"facecolor": PANEL, "edgecolor": "#c4c4cc", "linewidth": 1, "zorder": 0}
        size = right - left, bottom - top
        self.axes.add_patch(FancyBboxPatch(corner, *size, shape, **style))

    def text(self, x, y, text, size=13, align="center", **style):
        style = {"color": TEXT, "zorder": 4, "linespacing": 1.25, **style}
        points = size * 0.72  # of pixels at 100 pixels an inch
        self.axes.text(x, y, text, size=points, ha=align, va="center_baseline", **style)

    def arrow(self, *points, head=True):
        """A line through points that ends in a head."""
        xs, ys = zip(*points, strict=True)
        style = {"color": LINE, "linewidth": 1.3, "zorder": 1}
        self.axes.plot(xs[:-1] if head else xs, ys[:-1] if head else ys, **style)
        if head:
            shape = {"arrowstyle": "-|>", "mutation_scale": 10, "shrinkA": 0, "shrinkB": 0}
            self.axes.add_patch(FancyArrowPatch(points[-2], points[-1], **shape, **style))

    def plus(self, x, y, text="+"):
        self.axes.plot([x], [y], "o", markersize=14, color="white", markeredgecolor=LINE, zorder=2)
        self.text(x, y, text, 14)

    def png(self):
        """The picture in 64 colors, with two pixels for each of its own."""
        file = io.BytesIO()
        self.figure.savefig(file, dpi=200)
        picture = Image.open(file).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        file = io.BytesIO()
        picture.save(file, "png", optimize=True)
        return file.getvalue()


def architecture():
    """The whole model, Figure 1 of the paper."""
    canvas, left, right = Canvas(480, 760), 115, 365

    def sublayer(x, side, y, name, color, start=0):
        """A sub-layer and its norm at height `y`, with the residual connection around them."""
        canvas.arrow((x, y + 112 + start), (x, y + 67))
        around = x + side * 88
        canvas.arrow((x, y + 92), (around, y + 92), (around, y), (x + side * 76, y))
        canvas.box(x, y + 50, name, color)
        canvas.arrow((x, y + 33), (x, y + 18))
        canvas.box(x, y, "add & norm", NORM)

    for x, side, name in ((left, -1, "source sentence"), (right, 1, "translation so far")):
        canvas.text(x, 748, name, style="italic")
        canvas.box(x, 700, "embedding  ③", EMBEDDING)
        canvas.arrow((x, 737), (x, 718))
        canvas.arrow((x, 683), (x, 662))
        canvas.plus(x, 652)
        canvas.arrow((240, 652), (x - side * 12, 652))
    canvas.box(240, 652, "positions  ③", EMBEDDING, width=100, size=12)
    canvas.panel(13, 344, 217, 628)
    canvas.panel(263, 214, 467, 628)
    canvas.text(15, 642, "N blocks", align="left")
    canvas.text(465, 642, "N blocks", align="right")
    sublayer(left, -1, 506, "self-attention  ②", ATTENTION, start=24)
    sublayer(right, 1, 506, "causal attention  ⑤", ATTENTION, start=24)
    sublayer(left, -1, 376, "feed-forward  ④", FEED_FORWARD)
    sublayer(right, 1, 376, "cross-attention  ⑤", ATTENTION)
    sublayer(right, 1, 246, "feed-forward  ④", FEED_FORWARD)
    canvas.arrow((left, 359), (left, 322), (240, 322), (240, 426), (289, 426))
    canvas.text(155, 307, "encoder outputs", 12, style="italic")
    canvas.arrow((right, 229), (right, 172))
    canvas.box(right, 154, "embedding  ③", EMBEDDING)
    canvas.arrow((right, 137), (right, 114))
    canvas.text(right + 10, 125, "logits", 12, "left", style="italic")
    canvas.box(right, 96, "softmax", OUTPUT)
    canvas.arrow((right, 79), (right, 50))
    canvas.text(right, 34, "probabilities of\nthe next piece", style="italic")
    canvas.text(125, 60, "A circled number is the section\nof this notebook about a layer.", 12)
    return canvas


def attention():
    """Scaled dot-product attention as products of matrices, equation 1."""
    canvas = Canvas(560, 194)

    def matrix(left, columns, rows, name, shape, color):
        """A matrix of `rows` and `columns` cells of 14 pixels, with its shape below it."""
        width, height, middle = 14 * columns, 14 * rows, 88
        top = middle - height / 2
        for column in range(columns):
            for row in range(rows):
                corner = left + 14 * column, top + 14 * row
                style = {"facecolor": color, "edgecolor": "white", "linewidth": 1}
                canvas.axes.add_patch(Rectangle(corner, 14, 14, **style))
        canvas.text(left + width / 2, top - 14, name)
        canvas.text(left + width / 2, top + height + 14, shape, 10.5)

    matrix(14, 3, 4, "Q", "[4, d]", EMBEDDING)
    canvas.text(66, 86, "·", 22)
    matrix(76, 6, 3, "Kᵀ", "[d, 6]", FEED_FORWARD)
    canvas.arrow((168, 88), (218, 88))
    canvas.text(191, 76, "/ √d", 11)
    matrix(226, 6, 4, "scores", "[4, 6]", NORM)
    canvas.arrow((318, 88), (380, 88))
    canvas.text(347, 76, "softmax", 11)
    matrix(388, 6, 4, "weights", "[4, 6]", ATTENTION)
    canvas.text(485, 86, "·", 22)
    matrix(498, 2, 6, "V", "[6, v]", OUTPUT)
    canvas.text(280, 176, "4 queries, 6 keys and their values: the product is [4, v].", 12)
    return canvas


def heads():
    """Multi-head attention, Figure 2 of the paper."""
    canvas, middle = Canvas(560, 322), 250

    def pile(x, y, text, color, width):
        """One box for each of three heads, in front of each other."""
        for offset in (12, 6, 0):
            canvas.box(x + offset, y - offset, "" if offset else text, color, width, size=12)

    for x, name, inputs in zip((110, 250, 390), ("queries", "keys", "values"), "xyy", strict=True):
        canvas.text(x, 310, inputs, style="italic")
        canvas.arrow((x, 297), (x, 268))
        canvas.arrow((x, 224), (x, 187))
        pile(x, 250, f"Dense: {name}", EMBEDDING, 116)
    pile(middle, 168, "attention of a head", ATTENTION, 340)
    canvas.text(448, 160, "h heads", align="left")
    canvas.arrow((middle, 139), (middle, 113))
    canvas.box(middle, 95, "heads side by side", PANEL)
    canvas.arrow((middle, 78), (middle, 57))
    canvas.box(middle, 39, "Dense: output", EMBEDDING)
    canvas.arrow((middle, 22), (middle, 4))
    return canvas


def residual():
    """A sub-layer with its residual connection and norm, section 3.1 of the paper."""
    canvas, y = Canvas(560, 120), 80
    canvas.text(18, y, "x", style="italic")
    canvas.arrow((28, y), (78, y))
    canvas.box(135, y, "sub-layer", ATTENTION, width=112)
    canvas.arrow((192, y), (218, y))
    canvas.box(266, y, "dropout", PANEL, width=94)
    canvas.arrow((314, y), (343, y))
    canvas.plus(354, y)
    canvas.arrow((50, y), (50, 25), (354, 25), (354, y - 12))
    canvas.text(202, 12, "residual connection", 12, style="italic")
    canvas.arrow((366, y), (394, y))
    canvas.box(452, y, "layer norm", NORM, width=114)
    canvas.arrow((510, y), (546, y))
    return canvas


def shift():
    """Draws the inputs of the decoder and its labels, for one sentence."""
    pieces = ["<s>", "Es", "ist", "halb", "acht", ".", "</s>"]
    canvas = Canvas(560, 176)
    canvas.text(8, 22, "labels", align="left")
    canvas.text(8, 152, "target", align="left")
    canvas.panel(70, 66, 552, 108)
    canvas.text(311, 88, "decoder: a position sees itself and what is left of it", 12)
    for number in range(6):
        x = 114 + 79 * number
        canvas.box(x, 152, pieces[number], EMBEDDING, width=66, height=30)
        canvas.arrow((x, 136), (x, 110))
        canvas.arrow((x, 65), (x, 39))
        canvas.box(x, 22, pieces[number + 1], OUTPUT, width=66, height=30)
    return canvas


DIAGRAMS = {draw.__name__: draw for draw in (architecture, attention, heads, residual, shift)}


def draw_diagrams(cells):
    """Replaces the pictures in the cells of the diagrams."""
    for cell in cells:
        if draw := DIAGRAMS.get(cell["id"]):
            data = base64.b64encode(draw().png()).decode("ascii")
            beginning = "".join(cell["source"]).partition(" src=")[0]
            cell["source"] = [f'{beginning} src="data:image/png;base64,{data}">']


def run(notebook):
    """Runs the notebook in an empty folder; returns it without messages on stderr."""
    import nbclient
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        options = {"timeout": None, "record_timing": False, "coalesce_streams": True}
        options["resources"] = {"metadata": {"path": folder}}
        executed = nbformat.reads(json.dumps(notebook), as_version=4)
        nbclient.NotebookClient(executed, kernel_name="python3", **options).execute()
    for cell in executed.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    executed.metadata = notebook["metadata"]
    return json.loads(nbformat.writes(executed))


if __name__ == "__main__":
    tutorial = json.loads(NOTEBOOK.read_text("utf-8"))
    draw_diagrams(tutorial["cells"])
    if "--run" in sys.argv:
        tutorial = run(tutorial)
    NOTEBOOK.write_text(json.dumps(tutorial, indent=1, ensure_ascii=False) + "\n", "utf-8")
