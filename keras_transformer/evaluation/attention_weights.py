"""`AttentionWeights`: the attention of all layers and heads to one sentence and its answer."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import BOS_ID
from keras_transformer.layers.checks import check_choice

if TYPE_CHECKING:
    from keras_transformer.inference.pipeline import Pipeline

KINDS = ("encoder", "decoder", "cross")


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The attention of all layers and heads of a model, for one text and its answer.

    Args:
        source, target: pieces of the text and of the answer, EOS last.
        encoder, decoder, cross: float32 `[layers, heads, query_length, key_length]`. The queries of
            `decoder` and `cross` are the target's pieces, at the steps that predict them. The keys
            of `decoder` are the pieces that it reads: `<s>`, and all of the target but the last.

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
        """Returns a part of the weights, and its pieces, as `plot_attention` takes them.

        Args:
            attention: `"encoder"`, `"decoder"` or `"cross"`.
            layer, head: numbers from 1; None for all. A head needs a layer.

        Raises:
            ValueError: if there is no such layer or head.
        """
        check_choice("attention", attention, KINDS)
        weights = getattr(self, attention)
        if head is not None and layer is None:
            raise ValueError(f"`head` needs a `layer`. Received: head={head!r}")
        for name, number in (("layer", layer), ("head", head)):
            if number is None:
                break
            if number not in range(1, len(weights) + 1):
                allowed = f"a number from 1 to {len(weights)}"
                raise ValueError(f"`{name}` must be {allowed}. Received: {name}={number!r}")
            weights = weights[number - 1]
        source, target = tuple(self.source), tuple(self.target)
        keys = ("<s>", *target[:-1]) if attention == "decoder" else source
        return weights, keys, source if attention == "encoder" else target


def attention_weights(
    pipeline: "Pipeline", source: str, target: str | None = None
) -> AttentionWeights:
    """Returns the attention of a model to a text and its answer, of all layers and heads.

    Args:
        pipeline: a `Translator` or `Parser`. An `Ensemble` has the heads of all its models.
        source: the text.
        target: its translation, or its tree in brackets; None for the answer of the search.

    Raises:
        UserError: if the source is empty, one of both is longer than the model reads, or a tree
            does not have the words of the source.

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
    return AttentionWeights(
        tuple(pipeline.source_tokenizer.pieces(ids)),
        tuple(pipeline.target_tokenizer.pieces(labels)),
        **{
            kind: np.concatenate([ops.convert_to_numpy(ops.cast(s, "float32")) for s in layers])
            for kind, layers in scores.items()
        },
    )
