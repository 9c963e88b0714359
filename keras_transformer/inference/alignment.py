"""Word alignments from attention: which source word each target word looked at most."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Alignment(NamedTuple):
    """Which words of a source and its translation belong together; words are split by white space.

    Attributes:
        pairs: `(source word, target word)`, places from 0, sorted; one pair for every target word
            that has subwords, unless no word of the source has.
        attention: float `[target words, source words]`, the attention between words: the sum over
            a source word's subwords, the mean over a target word's. Rows sum to less than 1, since
            EOS, which is no word, has its share.

    Example:

    >>> from keras_transformer.inference.translator import Alignment
    >>> alignment = Alignment(((0, 0), (2, 1)), np.array([[0.8, 0.1, 0.0], [0.1, 0.2, 0.6]]))
    >>> alignment.pharaoh()
    '0-0 2-1'
    """

    pairs: tuple[tuple[int, int], ...]
    attention: np.ndarray

    def pharaoh(self) -> str:
        """Returns the pairs as `"0-0 1-2"`, a line as fast_align and Moses read and write it."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def align_words(
    attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> Alignment:
    """Aligns words by the attention between their subwords.

    Args:
        attention: float `[target subwords, source subwords]`, without EOS; the source may have
            been cut.
        source_words: number of subwords of each source word.
        target_words: number of subwords of each target word.

    Returns:
        An `Alignment`.

    Example:

    >>> weights = np.array([[0.9, 0.0, 0.1], [0.2, 0.4, 0.4]])
    >>> align_words(weights, source_words=[1, 2], target_words=[1, 1]).pharaoh()
    '0-0 1-1'
    """
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
    words = np.repeat(np.arange(len(num_subwords)), num_subwords)  # [subwords]
    return np.equal(np.arange(len(num_subwords))[:, None], words).astype("float64")


def layer_index(layer, num_layers) -> int:
    """Returns the number of a layer; the last but one of a single layer is that layer.

    Args:
        layer: number of the layer, from the end with a minus.
        num_layers: how many there are.

    Raises:
        ValueError: if there is no such layer.
    """
    if layer == -2 and num_layers == 1:
        return 0
    is_int = isinstance(layer, int) and not isinstance(layer, bool)
    if not is_int or not -num_layers <= layer < num_layers:
        raise ValueError(
            f"`layer` must be one of the decoder's {num_layers}, counted from 0, or from the end "
            f"with a minus. Received: layer={layer!r}"
        )
    return layer % num_layers
