"""Treebanks: files of trees in brackets, and the trees that a parser learns."""

import functools
import gzip
import os
import random
import re
from collections.abc import Iterable, Iterator

from keras_transformer.data.lines import open_text
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write, require_file
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.trees import Tree, TreeReader

EMPTY_TAG = "-NONE-"
NO_TREE = "(())"  # It stands in a file for a sentence without a tree.
# Labels of roots without information, in the Penn Treebank and in others.
_ROOTS = ("", "TOP", "ROOT", "S1")
# A label up to its first `-` or `=`, and the rest; not for a label that begins with `-`.
_FUNCTION_TAGS = re.compile(r"^(?!-)(.+?)[-=].*")


def read_trees(path: str | os.PathLike, clean: bool = True) -> Iterator[Tree]:
    """Yields the trees of a file in the style of the Penn Treebank.

    A tree is on one line or several; empty lines are ignored. The file is read lazily.

    Args:
        path: UTF-8 text; a file whose name ends in `.gz` is unpacked.
        clean: Yield `clean_tree(tree)`; if False, the tree as it is in the file.

    Raises:
        UserError: While reading, with the number of the line, if the text is not a tree or a tree
            has no words; if the file is missing, damaged, not UTF-8, or has no trees.

    Example:

    >>> from keras_transformer.parsing import Tree, read_trees, write_trees
    >>> write_trees("toy.trees", [Tree.parse("( (S (NP-SBJ (PRP It)) (VP (VBZ works))))"), None])
    >>> list(read_trees("toy.trees"))
    [Tree.parse('(S (NP (PRP It)) (VP (VBZ works)))')]
    """
    reader = TreeReader()
    first, has_trees = 0, False
    for number, line in enumerate(open_text(path), start=1):
        if reader.depth == 0:
            first = number
        begins = f" (the tree begins in line {first})" if first < number else ""
        for tree in _at_line(path, f"{number}{begins}", reader.feed, line):
            tree = clean_tree(tree) if clean else tree
            if tree is None:
                raise UserError(f"{str(path)!r}, line {number}: the tree has no words.")
            has_trees = True
            yield tree
    if reader.depth:
        raise UserError(f"{str(path)!r}, line {first}: the tree that begins here is not closed.")
    if not has_trees:
        raise UserError(f"{str(path)!r} has no trees.")


def read_tree_lines(path: str | os.PathLike, clean: bool = True) -> Iterator[Tree | None]:
    """Yields the tree of each line, as parsers write them and EVALB reads them.

    A line without a tree gives None: an empty line, and empty brackets `()` or `(())`.

    Args:
        path, clean: As in `read_trees`.

    Raises:
        UserError: As in `read_trees`, and if a line has several trees.

    Example:

    >>> from keras_transformer.parsing import Tree, read_tree_lines, write_trees
    >>> write_trees("toy.parses", [Tree.parse("(NP (DT a) (NN dog))"), None])
    >>> list(read_tree_lines("toy.parses"))
    [Tree.parse('(NP (DT a) (NN dog))'), None]
    """
    for number, line in enumerate(open_text(path), start=1):
        if re.fullmatch(r"[\s()]*", line) and line.count("(") == line.count(")"):
            yield None
        else:
            tree = _at_line(path, number, Tree.parse, line)
            yield clean_tree(tree) if clean else tree


def write_trees(path: str | os.PathLike, trees: Iterable[Tree | None]) -> None:
    """Writes trees to a file, one on each line.

    Args:
        path: The file, compressed if it ends in `.gz`. All trees are written before it is replaced.
        trees: The trees; None becomes an empty line.

    Example:

    >>> from keras_transformer.parsing import Tree, read_trees, write_trees
    >>> write_trees("toy.trees.gz", [Tree.parse("(NP (DT a) (NN dog))")])
    >>> [tree.words() for tree in read_trees("toy.trees.gz")]
    [['a', 'dog']]
    """
    with atomic_write(os.path.realpath(path)) as temporary:
        opener = gzip.open if temporary.name.endswith(".gz") else open
        with opener(temporary, "wt", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{'' if tree is None else tree}\n" for tree in trees)


class TreebankCorpus:
    """The trees of a file as pairs of text: words joined by spaces, and symbols joined by spaces.

    Args:
        path: Trees in brackets, which each iteration reads and cleans as `read_trees` does.
        linearization: Form of the trees as symbols; None for `Linearization()`.
        limit, seed: Number of trees to use, drawn at random, in the order of the file; None for
            all. A larger limit includes the trees of a smaller one.

    Raises:
        UserError: At once, if the file is missing or a pipe; while reading, as in `read_trees`.
        ValueError: If `limit` is not positive.

    Example:

    >>> from keras_transformer.parsing import Tree, TreebankCorpus, write_trees
    >>> write_trees("toy.trees", [Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))")])
    >>> corpus = TreebankCorpus("toy.trees")
    >>> list(corpus), len(corpus)
    ([('It works', '(S (NP XX )NP (VP XX )VP )S')], 1)
    """

    def __init__(
        self,
        path: str | os.PathLike,
        linearization: Linearization | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"`limit` must be positive, or None. Received: {limit=}")
        self.path = require_file(path, is_reread=True)
        self.linearization = linearization or Linearization()
        self.limit = limit
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for tree in self.trees():
            yield " ".join(tree.words()), " ".join(self.linearization.to_symbols(tree))

    def __len__(self) -> int:
        return len(self._unary_numbers) if self.limit is None else len(self._chosen)

    def max_unary(self) -> int:
        """Returns the largest `Tree.max_unary` in the file."""
        return max(self._unary_numbers)

    def trees(self) -> Iterator[Tree]:
        """Yields the clean trees of the pairs, in the same order."""
        for number, tree in enumerate(read_trees(self.path)):
            if self.limit is None or number in self._chosen:
                yield tree

    @functools.cached_property
    def _unary_numbers(self) -> list[int]:
        return [tree.max_unary() for tree in read_trees(self.path)]

    @functools.cached_property
    def _chosen(self) -> frozenset[int]:
        order = list(range(len(self._unary_numbers)))
        random.Random(self.seed).shuffle(order)
        return frozenset(order[: self.limit])


def clean_tree(tree: Tree) -> Tree | None:
    """Returns a tree without the parts that parsers usually do not predict; None without words.

    Traces, constituents that contain nothing else, function tags and indices are removed, and
    spaces within a word become `_`. A root that has no label, or is TOP, ROOT or S1, is removed if
    its only child is a constituent; otherwise it becomes TOP.

    Args:
        tree: Any tree.

    Example:

    >>> from keras_transformer.parsing import Tree, clean_tree
    >>> tree = Tree.parse("( (S (NP-SBJ-1 (-NONE- *PRO*)) (VP (VB Stop))) )")
    >>> print(clean_tree(tree))
    (S (VP (VB Stop)))
    """
    levels: list[tuple[str, list[Tree]]] = [("TOP", [])]
    for part in tree.walk():
        if part is None:
            label, children = levels.pop()
            if children:
                levels[-1][1].append(Tree(label, children))
        elif part.word is None:
            levels.append((_FUNCTION_TAGS.sub(r"\1", part.label), []))
        elif part.label != EMPTY_TAG:
            tag = _FUNCTION_TAGS.sub(r"\1", part.label)
            levels[-1][1].append(Tree(tag, part.word.replace(" ", "_")))
    [(_, roots)] = levels
    if not roots:
        return None
    root = Tree("TOP", roots)
    while root.label in _ROOTS and len(root.children) == 1:
        child = root.children[0]
        if isinstance(child, str) or child.is_leaf:
            break
        root = child
    return Tree("TOP", root.children) if root.label in _ROOTS else root


def _at_line(path, number, function, line):
    """Returns `function(line)`; its errors name the file and the line."""
    try:
        return function(line)
    except UserError as error:
        message = str(error)
        message = message[0].lower() + message[1:]
        raise UserError(f"{str(path)!r}, line {number}: {message}") from error
