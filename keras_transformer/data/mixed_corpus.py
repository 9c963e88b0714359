"""`MixedCorpus`: several corpora, mixed in given proportions in every epoch of a training."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from fractions import Fraction

import numpy as np

from keras_transformer.data.batch_plan import shuffle_corpus
from keras_transformer.data.tokenizer import Tokenizer, check_symbols
from keras_transformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The weights of corpora whose encoded pairs follow one another, and the pairs of an epoch."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    sizes: tuple[int, ...]  # numbers of encoded pairs

    def __post_init__(self):
        for name, weight, size in zip(self.names, self.weights, self.sizes, strict=True):
            check_weight(name, weight)
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
            begin, end = (shuffle_corpus(size, seed, number, n) for n in (first, last))
            drawn = [begin[start:stop]]
            if last > first:
                drawn = [begin[start:], np.tile(np.arange(size), last - first - 1), end[:stop]]
            indices += [before + of_corpus for of_corpus in drawn]
            before += size
        return np.concatenate(indices)

    def kept(self, keep: np.ndarray) -> "Mixture":
        """Returns the mixture of the pairs that stay; `keep` is bool `[pairs]`."""
        parts = np.split(keep, np.cumsum(self.sizes)[:-1])
        return dataclasses.replace(self, sizes=tuple(int(part.sum()) for part in parts))

    def to_dict(self) -> dict[str, list]:
        """Returns [weight, number of encoded pairs] by name, which JSON can hold."""
        values = zip(self.weights, self.sizes, strict=True)
        return dict(zip(self.names, map(list, values), strict=True))

    @classmethod
    def from_dict(cls, values: Mapping[str, list]) -> "Mixture":
        """Returns the mixture in a dict of `to_dict`."""
        return cls(tuple(values), *zip(*values.values(), strict=True))


class MixedCorpus:
    """Several corpora, mixed in given proportions in every epoch of a training.

    Iterated over, it has every pair of every corpus once, one corpus after another: a vocabulary is
    learned from these. `train`, and `TokenBatches` of an `EncodedCorpus` of it, draw an epoch: as
    many pairs as all corpora have together, up to rounding, in the proportions of the weights. A
    corpus with too few pairs for its share is repeated; of one with too many, each epoch has the
    next pairs in a random order, until all were drawn. The pairs of an epoch are a function of the
    seed and the epoch.

    Args:
        corpora: dict of corpora by name, such as `ParallelTextCorpus`.
        weights: dict of the weights by name of corpus, numbers above 0. Only their proportions
            count.
        tags: dict of a tag by name of corpus, such as `">>fra<<"`; it is put in front of the
            sources of the corpus, with a space. A corpus may have none. The vocabulary must have
            the tags as symbols (`train_sentencepiece(symbols=...)`); `train` adds them to a
            vocabulary that it learns.

    Raises:
        UserError: if there is no corpus, a weight is missing or not a finite number above 0, a name
            is unknown, or a tag has white space.

    Example:

    >>> from keras_transformer.data import MixedCorpus, PairsCorpus
    >>> corpora = {
    ...     "german": PairsCorpus([("a dog", "ein Hund"), ("a cat", "eine Katze")]),
    ...     "french": PairsCorpus([("a dog", "un chien")]),
    ... }
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
        self.corpora, self.weights, self.tags = dict(corpora), dict(weights), dict(tags or {})
        names = ", ".join(map(repr, self.corpora))
        if not self.corpora or self.weights.keys() != self.corpora.keys():
            rule = f"Every corpus must have a weight; there are corpora {names or '(none)'}"
            raise UserError(f"{rule}. Received: weights={self.weights}")
        for name, weight in self.weights.items():
            check_weight(name, weight)
        if self.tags.keys() - self.corpora.keys():
            raise UserError(f"Tags are for the corpora {names}. Received: tags={self.tags}")
        check_symbols(self.tags.values())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for name, corpus in self.corpora.items():
            prefix = f"{self.tags[name]} " if name in self.tags else ""
            for source, target in corpus:
                # An empty source stays empty, so that the pair is left out.
                yield (prefix + source if source.strip() else source), target

    def __len__(self) -> int:
        return sum(self._sizes)

    @functools.cached_property
    def _sizes(self) -> list[int]:
        corpora = self.corpora.values()
        return [len(c) if isinstance(c, Sized) else sum(1 for _ in c) for c in corpora]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The tags that the source vocabulary must have."""
        return tuple(dict.fromkeys(self.tags[name] for name in self.corpora if name in self.tags))

    def check_tags(self, tokenizer: Tokenizer) -> None:
        """Raises a `UserError` if a tag is not a symbol of the source vocabulary.

        Args:
            tokenizer: the tokenizer of the sources.
        """
        for tag in self.symbols:
            if tag not in tokenizer.symbols:
                known = ", ".join(tokenizer.symbols) or "none"
                rule = "The vocabulary must have each tag as a symbol (`keras-transformer vocab "
                rule += f"--symbols`; type bpe or unigram); its symbols are: {known}"
                raise UserError(f"{rule}. Received: the tag {tag!r}")

    def count(self, rows: np.ndarray) -> np.ndarray:
        """Returns how many of the pairs are of each corpus, int64 `[corpora]`.

        Args:
            rows: int64 `[pairs]`, the indices of pairs in this corpus, ascending.
        """
        return np.diff(np.searchsorted(rows, np.cumsum(self._sizes)), prepend=0)

    def mixture(self, sizes: np.ndarray) -> Mixture:
        """Returns the `Mixture` of the pairs that were encoded.

        Args:
            sizes: int64 `[corpora]`, the number of encoded pairs of each corpus.
        """
        weights = (self.weights[name] for name in self.corpora)
        return Mixture(tuple(self.corpora), tuple(weights), tuple(sizes.tolist()))


def check_weight(name: str, weight: float) -> None:
    """Raises a `UserError` unless the weight of a corpus is a finite number above 0."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 < weight or not math.isfinite(weight):
        rule = f"The weight of the corpus {name!r} must be a finite number above 0"
        raise UserError(f"{rule}. Received: {weight!r}")
