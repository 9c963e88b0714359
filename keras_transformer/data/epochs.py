"""The pairs of each epoch of a training: all pairs, a mixture, or pairs that are encoded again.

Each class has `pairs(epoch)`, which returns a corpus and the indices of its pairs in the epoch, or
None for each pair once. `corpus` is the corpus of all epochs; None if each has another one.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.packing import PackedCorpus, pack_corpus

EpochPairs = tuple[Any, np.ndarray | None]  # an `EncodedCorpus` or a `PackedCorpus`


class SameEpochs:
    """Each epoch has every pair of a corpus, or every row of a packed corpus, once."""

    def __init__(self, corpus: EncodedCorpus | PackedCorpus):
        self.corpus: Any = corpus

    def pairs(self, epoch: int) -> EpochPairs:
        """Returns the corpus, and None."""
        return self.corpus, None


class MixedEpochs:
    """Each epoch has the pairs that the mixture of a corpus draws."""

    def __init__(self, corpus: EncodedCorpus, seed: int):
        self.corpus: Any = corpus
        self._seed = seed

    def pairs(self, epoch: int) -> EpochPairs:
        """Returns the corpus, and the indices of the pairs of an epoch."""
        return self.corpus, self.corpus.mixture.draw(self._seed, epoch)


class EncodedEpochs:
    """Each epoch has a corpus of its own, as with BPE-dropout."""

    corpus = None

    def __init__(self, encode: Callable[[int], EncodedCorpus]):
        self._encode = functools.lru_cache(maxsize=1)(encode)

    def pairs(self, epoch: int) -> EpochPairs:
        """Returns the corpus of an epoch, and None."""
        return self._encode(epoch), None


class PackedEpochs:
    """Each epoch has other pairs, which are packed into rows."""

    corpus = None

    def __init__(self, epochs: MixedEpochs | EncodedEpochs, widths: tuple[int, int], seed: int):
        self._epochs, self._widths, self._seed = epochs, widths, seed

    def pairs(self, epoch: int) -> EpochPairs:
        """Returns the packed corpus of an epoch, and None."""
        encoded, drawn = self._epochs.pairs(epoch)
        return pack_corpus(encoded, self._widths, self._seed, drawn), None


def epochs_of(
    encoded: EncodedCorpus | Callable[[int], EncodedCorpus], seed: int, shuffle: bool
) -> SameEpochs | MixedEpochs | EncodedEpochs:
    """Returns the epochs of a corpus, or of a function of the epoch; validation is not mixed."""
    if not isinstance(encoded, EncodedCorpus):
        return EncodedEpochs(encoded)
    return MixedEpochs(encoded, seed) if encoded.mixture and shuffle else SameEpochs(encoded)


def pack_epochs(
    epochs: SameEpochs | MixedEpochs | EncodedEpochs, widths: tuple[int, int], seed: int
) -> SameEpochs | PackedEpochs:
    """Returns epochs whose pairs are packed into rows; those of a fixed corpus stay the same."""
    if isinstance(epochs, SameEpochs):
        return SameEpochs(pack_corpus(epochs.corpus, widths, seed))
    return PackedEpochs(epochs, widths, seed)
