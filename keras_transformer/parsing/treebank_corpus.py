"""`TreebankCorpus`: pairs of a sentence and its tree as symbols."""

import functools
import os
import random
from collections.abc import Iterator

from keras_transformer.data.corpora import require_regular_file
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.treebank import read_trees
from keras_transformer.parsing.trees import Tree


class TreebankCorpus:
    """The trees of a file as pairs of text: words joined by spaces, and symbols joined by spaces.

    Each iteration reads the file.

    Args:
        path: trees in brackets, as `read_trees` reads and cleans them; `.gz` is unpacked.
        linearization: form of the trees as symbols; None for `Linearization()`.
        limit: number of trees to use, in the order of the file; None for all. Each tree has the
            same chance, and a larger limit includes the trees of a smaller one.
        seed: seed of that choice.

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
    ) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"`limit` must be positive, or None. Received: limit={limit!r}")
        self.path = require_regular_file(path)
        self.linearization = linearization or Linearization()
        self.limit = limit
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for tree in self.trees():
            yield " ".join(tree.words()), " ".join(self.linearization.to_symbols(tree))

    def __len__(self) -> int:
        return self._num_trees if self.limit is None else len(self._chosen)

    def trees(self) -> Iterator[Tree]:
        """Yields the clean trees of the pairs, in the same order."""
        for number, tree in enumerate(read_trees(self.path)):
            if self.limit is None or number in self._chosen:
                yield tree

    @functools.cached_property
    def _num_trees(self) -> int:
        return sum(1 for _ in read_trees(self.path))

    @functools.cached_property
    def _chosen(self) -> frozenset[int]:
        order = list(range(self._num_trees))
        random.Random(self.seed).shuffle(order)
        return frozenset(order[: self.limit])
