"""A treebank as a corpus of pairs: the words of a sentence, and its tree as symbols."""

import os
import random
from collections.abc import Iterator

from keras_transformer.data.corpora import require_regular_file
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.treebank import read_trees
from keras_transformer.parsing.trees import Tree


class TreebankCorpus:
    """The trees of a file as pairs of text: words joined by spaces, and symbols joined by spaces.

    The file is read anew whenever the pairs or the trees are asked for.

    Args:
        path: bracketed trees, as `read_trees` reads and cleans them; `.gz` is unpacked.
        linearization: how trees are written as symbols; None for `Linearization()`.
        limit: use so many trees, in the order of the file; None for all. Every tree has the same
            chance, and those of a smaller limit are among those of a larger one.
        seed: of that choice.

    Raises:
        UserError: at once, if the file is missing or a pipe; while reading, with the number of the
            line, if a tree is not well-formed; and if the file has no tree.
        ValueError: if `limit` is not positive.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.parsing import TreebankCorpus
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trees"
    >>> _ = path.write_text("(S (NP (PRP It)) (VP (VBZ works)))")
    >>> corpus = TreebankCorpus(path)
    >>> list(corpus)
    [('It works', '(S (NP XX )NP (VP XX )VP )S')]
    >>> [tree.label for tree in corpus.trees()], len(corpus)
    (['S'], 1)
    """

    def __init__(
        self,
        path: str | os.PathLike,
        linearization: Linearization | None = None,
        limit: int | None = None,
        seed: int = 0,
    ):
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be positive, or None. Received: limit={limit!r}")
        self.path = require_regular_file(path)
        self.linearization = linearization or Linearization()
        self.limit = limit
        self.seed = seed
        self._num_trees: int | None = None
        self._chosen: frozenset[int] | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for tree in self.trees():
            yield " ".join(tree.words()), " ".join(self.linearization.to_symbols(tree))

    def __len__(self) -> int:
        num_trees = self._count()
        return num_trees if self.limit is None else min(num_trees, self.limit)

    def trees(self) -> Iterator[Tree]:
        """Yields the clean trees of the pairs, in the same order."""
        if self.limit is None:
            yield from read_trees(self.path)
            return
        if self._chosen is None:
            order = list(range(self._count()))
            random.Random(self.seed).shuffle(order)
            self._chosen = frozenset(order[: self.limit])
        for number, tree in enumerate(read_trees(self.path)):
            if number in self._chosen:
                yield tree

    def _count(self) -> int:
        if self._num_trees is None:
            self._num_trees = sum(1 for _ in read_trees(self.path))
        return self._num_trees
