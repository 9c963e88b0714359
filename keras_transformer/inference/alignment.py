"""Word alignments from attention: the source word that each target word attends to most."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.layers.checks import check_argument


class Alignment(NamedTuple):
    """The word alignment of a source and its translation, whose words are split at white space.

    Attributes:
        pairs: `(source word, target word)` as sorted indices from 0. Each target word with subwords
            has one pair, unless the source has no subwords.
        attention: float `[target words, source words]`, the attention between words: the sum over
            the subwords of a source word, the mean over the subwords of a target word. Rows sum to
            less than 1, because EOS also receives attention.

    Example:

    >>> from keras_transformer.inference.translator import Alignment
    >>> alignment = Alignment(((0, 0), (2, 1)), np.array([[0.8, 0.1, 0.0], [0.1, 0.2, 0.6]]))
    >>> alignment.pharaoh()
    '0-0 2-1'
    """

    pairs: tuple[tuple[int, int], ...]
    attention: np.ndarray

    def pharaoh(self) -> str:
        """Returns the pairs as `"0-0 1-2"`, the format of fast_align and Moses."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def align_words(
    attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> Alignment:
    """Aligns words by attention `[target, source]`, given the number of subwords of each word."""
    source, target = _membership(source_words), _membership(target_words)
    counts = np.maximum(target.sum(axis=1, keepdims=True), 1)  # [target words, 1]
    between_words = (target / counts) @ attention @ source[:, : attention.shape[1]].T
    pairs = [
        (int(row.argmax()), place)
        for place, row in enumerate(between_words)
        if row.size and row.max() > 0.0
    ]
    return Alignment(tuple(sorted(pairs)), between_words)


def _membership(num_subwords):
    """Returns float `[words, subwords]`, with 1 where a subword belongs to a word."""
    return np.repeat(np.eye(len(num_subwords)), num_subwords, axis=1)


def layer_index(layer: int, num_layers: int) -> int:
    """Returns the index of a layer, counted from 0; with one layer, -2 is also allowed."""
    if layer == -2 and num_layers == 1:
        return 0
    is_int = isinstance(layer, int) and not isinstance(layer, bool)
    rule = f"one of the decoder's {num_layers}, counted from 0, or from the end with a minus"
    check_argument(is_int and -num_layers <= layer < num_layers, "layer", rule, layer)
    return layer % num_layers
