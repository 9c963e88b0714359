"""`hold_out`: validation pairs that are taken out of the training text."""

import hashlib
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer.data.encoded_corpus import Corpus, PairsCorpus
from keras_transformer.errors import UserError
from keras_transformer.layouts import VALID_FILES

_SHARE, _MOST_PAIRS = 0.01, 1_000
_BLANK = 2**64 - 1  # in place of the hash of a source


class _KeptPairs:
    """The pairs of a corpus that stay; `keep` is bool `[pairs]`."""

    def __init__(self, corpus: Corpus, keep: np.ndarray):
        self._corpus, self._keep = corpus, keep
        self.numbers = np.flatnonzero(keep) + 1  # in the whole corpus, from 1

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return itertools.compress(self._corpus, self._keep)

    def __len__(self) -> int:
        return len(self.numbers)


class HeldOutPairs(PairsCorpus):
    """Pairs for validation that were taken out of the training text."""

    def save(self, directory: pathlib.Path) -> None:
        """Writes the sources to `valid.source`, and the targets to `valid.target`."""
        for name, texts in zip(VALID_FILES, zip(*self, strict=True), strict=True):
            (directory / name).write_text("\n".join((*texts, "")), "utf-8", newline="\n")


def hold_out(corpus: Corpus) -> tuple[Any, HeldOutPairs]:
    """Returns the pairs to train on, and one of a hundred, but at most 1,000, for validation.

    The choice depends on the sources alone, and pairs with the same source stay together.
    """
    keys = np.fromiter(itertools.starmap(_key, corpus), np.uint64)
    most = min(max(round(_SHARE * len(keys)), 1), _MOST_PAIRS)
    sources, rows, counts = np.unique(keys, return_inverse=True, return_counts=True)
    counts[(sources == _BLANK) | (counts > most)] = 0
    is_held = ((counts > 0) & (np.cumsum(counts) <= most))[rows]
    if not 0 < is_held.sum() < len(keys):
        rule = "The text has too few different sources to hold validation pairs out of it"
        raise UserError(f"{rule}: give validation text. Received: {len(keys):,} pairs")
    held_out = HeldOutPairs(list(itertools.compress(corpus, is_held)))
    return _KeptPairs(corpus, ~is_held), held_out


def _key(source, target):
    if not (source.strip() and target.strip()):
        return _BLANK
    digest = hashlib.blake2b(source.strip().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
