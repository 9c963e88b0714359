"""`attention_page`: a page of attention for a browser, with lines between the pieces."""

import base64
import json
import os
import pathlib
import zlib

import numpy as np

from keras_transformer.evaluation.attention_weights import KINDS, AttentionWeights
from keras_transformer.files import atomic_write

_TEMPLATE = pathlib.Path(__file__).with_name("attention_page.html")
_PLACE_OF_DATA = "DATA_OF_THE_PAGE"


def attention_page(
    weights: AttentionWeights,
    path: str | os.PathLike,
    attention: str = "cross",
    layer: int | None = None,
    head: int | None = None,
    title: str | None = None,
) -> pathlib.Path:
    """Writes an HTML page that shows attention as lines between pieces, a colour for each head.

    The page needs no network. Its reader chooses attention, layer, heads and pieces. The weights
    are rounded to multiples of 1/255.

    Args:
        weights: of `attention_weights`.
        path: the page to write; .html.
        attention, layer, head: what the page shows first, as in `AttentionWeights.view`; None for
            the last layer and all its heads.
        title: heading of the page; None for "Attention".

    Returns:
        `path` as a `pathlib.Path`.

    Raises:
        ValueError: if there is no such layer or head.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.evaluation import AttentionWeights, attention_page
    >>> pieces, attention = ("half", "</s>"), np.full([1, 2, 2, 2], 0.5)
    >>> weights = AttentionWeights(pieces, pieces, attention, attention, attention)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "attention.html"
    >>> attention_page(weights, path, layer=1, head=2).name
    'attention.html'

    Reference: Vaswani et al. (2017), figures 3 to 5.
    """
    weights.view(attention, layer, head)  # Raises if there is no such head.
    data = {
        "title": title or "Attention",
        "attention": attention,
        "layer": layer,
        "head": head,
        "weights": {kind: _packed(*weights.view(kind)) for kind in KINDS},
    }
    # In a script element only this character could end the data.
    text = json.dumps(data).replace("<", "\\u003c")
    path = pathlib.Path(path)
    with atomic_write(path) as temporary:
        page = _TEMPLATE.read_text(encoding="utf-8").replace(_PLACE_OF_DATA, text)
        temporary.write_text(page, encoding="utf-8")
    return path


def _packed(weights, keys, queries):
    """Returns the weights as compressed bytes in base64, for JSON."""
    numbers = np.round(np.asarray(weights) * 255).astype("uint8").tobytes()
    compressed = base64.b64encode(zlib.compress(numbers, level=9)).decode("ascii")
    return {"shape": np.shape(weights), "keys": keys, "queries": queries, "values": compressed}
