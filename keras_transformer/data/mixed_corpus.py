"""Corpora made of others: mixed in given proportions, or divided into training and validation."""

import dataclasses
import functools
import hashlib
import itertools
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from fractions import Fraction
from typing import Any

import numpy as np

from keras_transformer.data.batch_plan import shuffle_corpus
from keras_transformer.data.corpora import Corpus, PairsCorpus
from keras_transformer.data.tokenizer import Tokenizer, as_symbols
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write
from keras_transformer.layouts import VALID_FILES

_SHARE, _MOST_PAIRS = 0.01, 1_000
_BLANK = 2**64 - 1  # in place of the hash of a source


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The weights of corpora whose encoded pairs follow one another, and the pairs of an epoch."""

    names: Sequence[str]
    weights: Sequence[float]
    sizes: Sequence[int]  # numbers of encoded pairs
    tags: Sequence[str] = ()  # of the sources

    def __post_init__(self):
        as_symbols(self.tags)  # checks them
        for name, weight, size in zip(self.names, self.weights, self.sizes, strict=True):
            is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not is_number or not 0 < weight < math.inf:
                rule = f"The weight of the corpus {name!r} must be a finite number above 0"
                raise UserError(f"{rule}. Received: {weight!r}")
            if type(size) is not int or size < 1:
                raise UserError(f"No sentence pair is left of the corpus {name!r}.")

    @property
    def shares(self) -> list[int]:
        """The number of pairs of each corpus in an epoch, in all as many as all corpora have."""
        weights, num_pairs = list(map(Fraction, self.weights)), sum(self.sizes)
        return [max(1, round(num_pairs * weight / sum(weights))) for weight in weights]

    def draw(self, seed: int, epoch: int) -> np.ndarray:
        """Returns the indices of the pairs of an epoch, int64 `[pairs]`.

        Each corpus is an endless stream: all of its pairs in a random order, then all of them in
        another order, and so on. Each epoch has the next pairs of every stream.
        """
        before, indices = 0, []
        for number, (size, share) in enumerate(zip(self.sizes, self.shares, strict=True)):
            first, start = divmod(epoch * share, size)
            last, stop = divmod((epoch + 1) * share, size)
            shuffled = functools.partial(shuffle_corpus, size, seed, number)
            if first == last:
                drawn = [shuffled(first)[start:stop]]
            else:
                whole = np.tile(np.arange(size), last - first - 1)
                drawn = [shuffled(first)[start:], whole, shuffled(last)[:stop]]
            indices += [before + of_corpus for of_corpus in drawn]
            before += size
        return np.concatenate(indices)

    def kept(self, keep: np.ndarray) -> "Mixture":
        """Returns the mixture of the pairs that stay; `keep` is bool `[pairs]`."""
        parts = np.split(keep, np.cumsum(self.sizes)[:-1])
        return dataclasses.replace(self, sizes=[int(part.sum()) for part in parts])


class MixedCorpus:
    """Several corpora, mixed in given proportions in every epoch of a training.

    Iterated over, it has every pair of every corpus once. An epoch of `train`, or of `TokenBatches`
    of an `EncodedCorpus` of it, has as many pairs, up to rounding, in the proportions of the
    weights. A corpus that is too small for its share is repeated; of a larger one, each epoch has
    the next pairs in a random order. The pairs are a function of the seed and the epoch.

    Args:
        corpora: Dict of corpora by name, such as `ParallelTextCorpus`.
        weights: Dict of the weight of each corpus, a number above 0; their proportions count.
        tags: Dict of tags by name of corpus, such as `">>fra<<"`, that are put in front of the
            sources of the corpus, with a space. The source vocabulary must have them as symbols
            (`train_sentencepiece(symbols=...)`), as one that `train` learns has.

    Raises:
        UserError: If there is no corpus, a weight is missing or not a finite number above 0, a name
            is unknown, or a tag has white space.

    Example:

    >>> from keras_transformer.data import MixedCorpus, PairsCorpus
    >>> german = PairsCorpus([("a dog", "ein Hund"), ("a cat", "eine Katze")])
    >>> corpora = {"german": german, "french": PairsCorpus([("a dog", "un chien")])}
    >>> corpus = MixedCorpus(corpora, {"german": 1, "french": 2}, tags={"french": ">>fra<<"})
    >>> list(corpus)[1:]
    [('a cat', 'eine Katze'), ('>>fra<< a dog', 'un chien')]
    """

    def __init__(
        self,
        corpora: Mapping[str, Iterable[tuple[str, str]]],
        weights: Mapping[str, float],
        tags: Mapping[str, str] | None = None,
    ):
        self.corpora, self.tags, names = dict(corpora), dict(tags or {}), list(corpora)
        if not names or weights.keys() != corpora.keys():
            rule = f"Every corpus must have a weight; the corpora are {names}"
            raise UserError(f"{rule}. Received: weights={dict(weights)}")
        self.weights = {name: weights[name] for name in names}
        Mixture(names, list(self.weights.values()), [1] * len(names))  # checks the weights
        if self.tags.keys() - corpora.keys():
            raise UserError(f"Tags are for the corpora {names}. Received: tags={self.tags}")
        # The tags that the source vocabulary must have.
        self.symbols = as_symbols(self.tags[name] for name in names if name in self.tags)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for name, corpus in self.corpora.items():
            prefix = f"{self.tags[name]} " if name in self.tags else ""
            for source, target in corpus:
                # An empty source stays empty, so that the pair is left out.
                yield (prefix + source if source.strip() else source), target

    def __len__(self) -> int:
        return sum(self.sizes)

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of pairs of each corpus."""
        corpora = self.corpora.values()
        return [len(c) if isinstance(c, Sized) else sum(1 for _ in c) for c in corpora]

    def count_pairs(self, rows: np.ndarray) -> np.ndarray:
        """Returns how many of some pairs are of each corpus; `rows` has their indices."""
        numbers = np.searchsorted(np.cumsum(self.sizes), rows, side="right")
        return np.bincount(numbers, minlength=len(self.corpora))

    def mixture(self, sizes: Sequence[int]) -> Mixture:
        """Returns the mixture of the pairs that were encoded; `sizes` are their numbers."""
        return Mixture([*self.corpora], [*self.weights.values()], sizes, [*self.symbols])


def check_tags(corpus: MixedCorpus, tokenizer: Tokenizer) -> None:
    """Raises a `UserError` if a tag is not a symbol of the tokenizer of the sources."""
    if missing := [tag for tag in corpus.symbols if tag not in tokenizer.symbols]:
        rule = "The vocabulary must have each tag as a symbol (`keras-transformer vocab --symbols`)"
        rule += f"; it has: {', '.join(tokenizer.symbols[:8]) or 'none'}"
        raise UserError(f"{rule}. Received: the tag {missing[0]!r}")


class _KeptPairs:
    """The pairs of a corpus that stay; `keep` is bool `[pairs]`."""

    def __init__(self, corpus: Corpus, keep: np.ndarray):
        self._corpus, self._keep = corpus, keep

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return itertools.compress(self._corpus, self._keep)

    def __len__(self) -> int:
        return int(self._keep.sum())

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the pairs in the whole corpus, from 1."""
        return np.flatnonzero(self._keep) + 1


class HeldOutPairs(PairsCorpus):
    """Pairs for validation that were taken out of the training text."""

    def save(self, directory: pathlib.Path) -> None:
        """Writes the sources to `valid.source`, and the targets to `valid.target`."""
        for name, texts in zip(VALID_FILES, zip(*self, strict=True), strict=True):
            with atomic_write(directory / name) as temporary:
                temporary.write_text("\n".join((*texts, "")), "utf-8", newline="\n")


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
