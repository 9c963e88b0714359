"""Word alignments from attention: each target word with the source word that it attends to."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.layers.checks import check_argument


class Alignment(NamedTuple):
    """The words of a source and of its translation that belong together, split at white space.

    Attributes:
        pairs: `(source word, target word)`, indices from 0, sorted; one pair for every target word
            that has subwords, unless no word of the source has any.
        attention: float `[target words, source words]`, the attention between words: the sum over
            a source word's subwords, the mean over a target word's. Rows sum to less than 1,
            because EOS, which is not a word, has its share.

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
    """Aligns words, given as their numbers of subwords, by attention `[target, source]`."""
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
    """1 where a subword belongs to a word: float `[words, subwords]`."""
    return np.repeat(np.eye(len(num_subwords)), num_subwords, axis=1)


def layer_index(layer: int, num_layers: int) -> int:
    """Returns the index of a layer from 0; -2 stands for the only layer if there is one."""
    if layer == -2 and num_layers == 1:
        return 0
    is_int = isinstance(layer, int) and not isinstance(layer, bool)
    rule = f"one of the decoder's {num_layers}, counted from 0, or from the end with a minus"
    check_argument(is_int and -num_layers <= layer < num_layers, "layer", rule, layer)
    return layer % num_layers
