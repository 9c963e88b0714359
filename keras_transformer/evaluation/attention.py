"""Attention weights for one text and its answer, and an HTML page that shows them."""

import base64
import dataclasses
import json
import os
import pathlib
import zlib
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.checks import check_argument, check_choice
from keras_transformer.data.tokenizer import BOS_ID
from keras_transformer.files import atomic_write
from keras_transformer.inference.pipeline import Pipeline

KINDS = ("encoder", "decoder", "cross")
_TEMPLATE = pathlib.Path(__file__).with_name("attention_page.html")


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Attention weights of all layers and heads of a model, for one text and its answer.

    Args:
        source, target: Pieces of the text and of the answer, EOS last.
        encoder, decoder, cross: float32 `[layers, heads, query_length, key_length]`. Each query of
            `decoder` and `cross` is the step that predicts a target piece. The keys of `decoder`
            are the pieces that the decoder reads: `<s>` and the target without its last piece.

    Example:

    >>> from keras_transformer.evaluation import AttentionWeights
    >>> attention = np.full([1, 2, 3, 3], 1 / 3)
    >>> pieces = ["half", "seven", "</s>"]
    >>> weights = AttentionWeights(pieces, pieces, attention, attention, attention)
    >>> shown, keys, queries = weights.view("decoder", layer=1)
    >>> shown.shape, keys
    ((2, 3, 3), ('<s>', 'half', 'seven'))
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray

    def view(
        self, attention: str = "cross", layer: int | None = None, head: int | None = None
    ) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
        """Returns the chosen weights with their keys and queries, as arguments of `plot_attention`.

        Args:
            attention: `"encoder"`, `"decoder"` or `"cross"`.
            layer, head: Numbers from 1; None for all. A head needs a layer.

        Raises:
            ValueError: If there is no such attention, layer or head, or only a head is given.
        """
        check_choice("attention", attention, KINDS)
        weights = getattr(self, attention)
        if head is not None and layer is None:
            raise ValueError(f"A head needs a layer. Received: {head=}")
        for name, number in (("layer", layer), ("head", head)):
            if number is None:
                break
            exists = number in range(1, len(weights) + 1)
            check_argument(exists, name, f"a number from 1 to {len(weights)}", number)
            weights = weights[number - 1]
        source, target = tuple(self.source), tuple(self.target)
        keys = ("<s>", *target[:-1]) if attention == "decoder" else source
        return weights, keys, source if attention == "encoder" else target


def attention_weights(
    pipeline: Pipeline, source: str, target: str | None = None
) -> AttentionWeights:
    """Returns the attention weights of all layers and heads for a text and its answer.

    Args:
        pipeline: A `Translator` or `Parser`; an `Ensemble` has the heads of all its models.
        source, target: The text, and its translation or its tree in brackets; None for the answer
            that the search finds without a glossary.

    Raises:
        UserError: If the source is empty, one is too long, or a tree has other words.

    Example:

    >>> from keras_transformer import Transformer, Translator
    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.evaluation import attention_weights
    >>> tokenizer = SubwordTokenizer(["half", "seven"])
    >>> translator = Translator(Transformer.from_preset("tiny", vocab_size=6), tokenizer)
    >>> weights = attention_weights(translator, "half seven", "seven half")
    >>> weights.target, weights.cross.shape
    (('seven', 'half', '</s>'), (4, 4, 3, 3))

    Reference: Vaswani et al. (2017), figures 3 to 5.
    """
    ids, labels = pipeline.encode_pair(source, target)
    inputs = ([ids], [[BOS_ID, *labels[:-1]]])
    scores = pipeline.model.attention_scores(*(ops.convert_to_tensor(x, "int32") for x in inputs))
    weights = {
        kind: np.concatenate([ops.convert_to_numpy(ops.cast(x, "float32")) for x in layers])
        for kind, layers in scores.items()
    }
    if window := pipeline.model.config.sliding_window:
        weights |= {kind: _expand_window(weights[kind], window) for kind in ("encoder", "decoder")}
    source_pieces = tuple(pipeline.source_tokenizer.pieces(ids))
    target_pieces = tuple(pipeline.target_tokenizer.pieces(labels))
    return AttentionWeights(source_pieces, target_pieces, **weights)


def attention_page(
    weights: AttentionWeights,
    path: str | os.PathLike,
    attention: str = "cross",
    layer: int | None = None,
    head: int | None = None,
    title: str | None = None,
) -> pathlib.Path:
    """Writes an HTML page that draws attention as lines between pieces, and returns its path.

    The page needs no network. Its weights are rounded to multiples of 1/255.

    Args:
        weights: The `AttentionWeights` to show.
        path: The HTML file to write.
        attention, layer, head: The first view, as in `AttentionWeights.view`; None for the last
            layer or all heads. The page has controls to choose others.
        title: Heading of the page; None for "Attention".

    Raises:
        ValueError: If there is no such attention, layer or head, or only a head is given.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.evaluation import AttentionWeights, attention_page
    >>> pieces, attention = ("half", "</s>"), np.full([1, 2, 2, 2], 0.5)
    >>> weights = AttentionWeights(pieces, pieces, attention, attention, attention)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "attention.html"
    >>> attention_page(weights, path, layer=1, head=2).name
    'attention.html'
    """
    weights.view(attention, layer, head)  # Raises an error if the view does not exist.
    title = title or "Attention"
    data: dict[str, Any] = {"title": title, "attention": attention, "layer": layer, "head": head}
    for kind in KINDS:
        shown, keys, queries = weights.view(kind)
        levels = np.round(shown * 255).astype("uint8").tobytes()
        values = base64.b64encode(zlib.compress(levels, level=9)).decode("ascii")
        data[kind] = {"shape": shown.shape, "keys": keys, "queries": queries, "values": values}
    # Only "<" could end the script element that holds the data.
    text = json.dumps(data).replace("<", "\\u003c")
    with atomic_write(os.path.realpath(path)) as temporary:
        page = _TEMPLATE.read_text(encoding="utf-8").replace("DATA_OF_THE_PAGE", text)
        temporary.write_text(page, encoding="utf-8")
    return pathlib.Path(path)


def _expand_window(weights, window):
    """Expands the weights of a sliding window to all keys, with 0 for keys outside the window."""
    *rows, length, width = weights.shape
    padded = np.zeros((*rows, length, length + width - 1), "float32")
    for query in range(length):
        padded[..., query, query : query + width] = weights[..., query, :]
    return padded[..., window - 1 : window - 1 + length]
