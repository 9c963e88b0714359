"""Treebanks: files of bracketed trees, and what is left of a tree for a parser to learn."""

import gzip
import os
import re
from collections.abc import Iterable, Iterator

from keras_transformer.data.text_lines import open_text
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write
from keras_transformer.parsing.trees import Tree, TreeReader

EMPTY_TAG = "-NONE-"
# What stands in a file for a sentence of which there is no tree.
NO_TREE = "(())"
# Roots that say nothing: the Penn Treebank's own, and what others write there.
_ROOTS = ("", "TOP", "ROOT", "S1")
_FUNCTION_TAGS = re.compile(r"(?<=.)[-=].*")


def read_trees(path: str | os.PathLike, clean: bool = True) -> Iterator[Tree]:
    """Yields the trees of a treebank's file, in the style of the Penn Treebank.

    A tree stands on one line or on several; empty lines do not matter. The file is read as trees
    are asked for.

    Args:
        path: UTF-8 text; one whose name ends in `.gz` is unpacked.
        clean: yield `clean_tree(tree)`; if False, the tree as it was written.

    Yields:
        `Tree`.

    Raises:
        UserError: while reading, with the number of the line: if brackets do not match, are empty,
            or hold a word without a tag; if there is text outside of them, or a tree without words;
            if the file is missing, damaged, not UTF-8, or has no trees.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.parsing import read_trees
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trees"
    >>> _ = path.write_text("( (S (NP-SBJ (PRP It))\\n     (VP (VBZ works))) )\\n")
    >>> [str(tree) for tree in read_trees(path)]
    ['(S (NP (PRP It)) (VP (VBZ works)))']
    """
    reader = TreeReader()
    first, count = 0, 0
    for number, line in enumerate(open_text(path), start=1):
        if reader.depth == 0:
            first = number
        begins = f" (the tree begins in line {first})" if first < number else ""
        for tree in _at_line(path, f"{number}{begins}", reader.feed, line):
            tree = clean_tree(tree) if clean else tree
            if tree is None:
                raise UserError(f"{str(path)!r}, line {number}: the tree has no words.")
            count += 1
            yield tree
    if reader.depth:
        raise UserError(f"{str(path)!r}, line {first}: the tree that begins here is not closed.")
    if not count:
        raise UserError(f"{str(path)!r} has no trees.")


def read_tree_lines(path: str | os.PathLike, clean: bool = True) -> Iterator[Tree | None]:
    """Yields a tree for every line, as a parser writes them and EVALB reads them.

    Args:
        path: UTF-8 text; one whose name ends in `.gz` is unpacked.
        clean: yield `clean_tree(tree)`; if False, the tree as it was written.

    Yields:
        `Tree`; None for a line without a tree: an empty one, and empty brackets `()` or `(())`,
        which parsers write where they found none.

    Raises:
        UserError: while reading, as of `read_trees`, and if a line has more than one tree.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.parsing import read_tree_lines
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "parses"
    >>> _ = path.write_text("(NP (DT a) (NN dog))\\n(())\\n")
    >>> list(read_tree_lines(path))
    [Tree.parse('(NP (DT a) (NN dog))'), None]
    """
    for number, line in enumerate(open_text(path), start=1):
        if re.fullmatch(r"[\s()]*", line) and line.count("(") == line.count(")"):
            yield None
        else:
            tree = _at_line(path, number, Tree.parse, line)
            yield clean_tree(tree) if clean else tree


def write_trees(path: str | os.PathLike, trees: Iterable[Tree | None]) -> None:
    """Writes trees to a file, one a line.

    Args:
        path: the file; one whose name ends in `.gz` is packed. It is replaced once all is written.
        trees: what to write; None becomes an empty line.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.parsing import Tree, read_trees, write_trees
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trees.gz"
    >>> write_trees(path, [Tree.parse("(NP (DT a) (NN dog))")])
    >>> [tree.words() for tree in read_trees(path)]
    [['a', 'dog']]
    """
    with atomic_write(path) as temporary:
        opener = gzip.open if temporary.name.endswith(".gz") else open
        with opener(temporary, "wt", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{'' if tree is None else tree}\n" for tree in trees)


def clean_tree(tree: Tree) -> Tree | None:
    """Returns a tree without what parsers do not predict, as is usual in the field.

    - Traces (the tag is `-NONE-`) go, and so do constituents that hold nothing else.
    - Function tags and indices go: `NP-SBJ-1` and `NP=2` become `NP`; `-LRB-` stays.
    - A root without a label, and one that is TOP, ROOT or S1, goes if it holds one constituent; if
      it holds several, or a leaf, it is TOP.
    - Spaces within a word become `_`.

    Args:
        tree: a tree as read.

    Returns:
        `Tree`, or None if no word is left. A clean tree is returned equal.

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
        elif not part.is_leaf:
            levels.append((strip_function_tags(part.label), []))
        elif part.label != EMPTY_TAG:
            leaf = Tree(strip_function_tags(part.label), part.word.replace(" ", "_"))
            levels[-1][1].append(leaf)
    [(_, roots)] = levels
    if not roots:
        return None
    root = Tree("TOP", roots)
    while root.label in _ROOTS and len(root.children) == 1 and not root.children[0].is_leaf:
        root = root.children[0]
    return Tree("TOP", root.children) if root.label in _ROOTS else root


def strip_function_tags(label: str) -> str:
    """Returns a label up to its first `-` or `=`; one that begins with `-` as it is.

    Args:
        label: a constituent's label or a tag.

    Returns:
        `str`.

    Example:

    >>> [strip_function_tags(label) for label in ("NP-SBJ-1", "PP=2", "-LRB-")]
    ['NP', 'PP', '-LRB-']
    """
    return label if label.startswith("-") else _FUNCTION_TAGS.sub("", label)


def _at_line(path, number, function, *arguments):
    """Calls a function; of its error, says where in which file it is."""
    try:
        return function(*arguments)
    except UserError as error:
        message = str(error)
        message = message[0].lower() + message[1:]
        raise UserError(f"{str(path)!r}, line {number}: {message}") from error
