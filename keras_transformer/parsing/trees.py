"""Constituency trees, their text in brackets, `(S (NP (DT The) ...) ...)`, and files of them."""

import dataclasses
import gzip
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from keras_transformer.data.corpora import open_text
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write

# No other characters separate: a word may contain other spaces, such as U+00A0 or U+2009.
SPACE = r" \t\r\n\f\v"
_TOKENS = re.compile(rf"[()]|[^{SPACE}()]+")
_LABEL = re.compile(rf"[^{SPACE}()]*")
_LEAF = re.compile(rf"[^{SPACE}]+(?: [^{SPACE}]+)*")
PLACEHOLDER = "XX"  # It stands for a word, and for an unknown tag.
_WITHOUT_TAG = "The word {0!r} has no tag: expected '(TAG {0})'."
EMPTY_TAG = "-NONE-"
NO_TREE = "(())"  # It stands in a file for a sentence without a tree.
# Labels of roots without information, in the Penn Treebank and in others.
_ROOTS = ("", "TOP", "ROOT", "S1")
# A label up to its first `-` or `=`, and the rest; not for a label that begins with `-`.
_FUNCTION_TAGS = re.compile(r"^(?!-)(.+?)[-=].*")


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent with its parts, or a leaf: a tag with its word.

    Trees are immutable, may have any depth, and are equal if their constituents, labels and words
    are equal. A round bracket in a word is `(` in `word` and `-LRB-` in the text of the tree.

    Args:
        label: The kind of the constituent, "NP", or the tag of a leaf, "NN"; without spaces and
            round brackets. The root of a tree in a treebank may have an empty label.
        children: The parts, at least one `Tree`; of a leaf, its word, with at most single spaces.

    Raises:
        ValueError: If the label or the children are not allowed.

    Example:

    >>> from keras_transformer.parsing import Tree
    >>> tree = Tree("NP", [Tree("DT", "the"), Tree("NN", "dog")])
    >>> print(tree)
    (NP (DT the) (NN dog))
    >>> tree == Tree.parse("(NP (DT the) (NN dog))"), tree.children[1].word
    (True, 'dog')
    """

    label: str
    children: "Sequence[Tree] | str"

    def __post_init__(self):
        if not isinstance(self.label, str) or not _LABEL.fullmatch(self.label):
            rule = "The label of a tree must be a string without spaces and round brackets"
            raise ValueError(f"{rule}. Received: label={self.label!r}")
        if isinstance(self.children, str):
            if not self.label or not _LEAF.fullmatch(self.children):
                rule = "A leaf must have a tag and a word, with at most single spaces inside"
                received = f"label={self.label!r}, children={self.children!r}"
                raise ValueError(f"{rule}. Received: {received}")
            return
        children = tuple(self.children)
        if not children or not all(isinstance(child, Tree) for child in children):
            rule = "The children of a tree must be at least one tree, or a word"
            raise ValueError(f"{rule}. Received: label={self.label!r}, {children=}")
        object.__setattr__(self, "children", children)

    @classmethod
    def parse(cls, text: str) -> "Tree":
        """Returns the tree of a text in brackets.

        Args:
            text: One tree, on one line or several; any other text raises a `UserError`.
        """
        reader = TreeReader()
        trees = reader.feed(text)
        if reader.depth:
            raise UserError(f"The text ends within a tree. Received: {reader.depth} open brackets")
        if len(trees) != 1:
            raise UserError(f"Expected one tree in brackets. Received: {len(trees)} trees")
        return trees[0]

    @property
    def is_leaf(self) -> bool:
        """Whether this is a tag with its word."""
        return isinstance(self.children, str)

    @property
    def word(self) -> str | None:
        """The word of a leaf; None for a constituent."""
        return self.children if isinstance(self.children, str) else None

    def walk(self) -> "Iterator[Tree | None]":
        """Yields each tree before its children, this one first; None where a constituent ends."""
        stack: list[Tree | None] = [self]
        while stack:
            tree = stack.pop()
            yield tree
            if tree is not None and not isinstance(tree.children, str):
                stack.append(None)
                stack.extend(reversed(tree.children))

    def subtrees(self) -> "Iterator[Tree]":
        """Yields this tree and all trees inside it, each before its children."""
        return (tree for tree in self.walk() if tree is not None)

    def leaves(self) -> Iterator[tuple[str, str]]:
        """Yields the tag and the word of each leaf, from left to right."""
        for tree in self.subtrees():
            if isinstance(tree.children, str):
                yield tree.label, tree.children

    def words(self) -> list[str]:
        """Returns the words from left to right."""
        return [word for _, word in self.leaves()]

    def tags(self) -> list[str]:
        """Returns the tags of the words from left to right."""
        return [tag for tag, _ in self.leaves()]

    def max_unary(self) -> int:
        """Returns the largest number of constituents in a row that have a single part each."""
        longest = number = 0
        for tree in self.subtrees():  # A part follows its constituent.
            is_unary = not tree.is_leaf and len(tree.children) == 1
            number = number + 1 if is_unary else 0
            longest = max(longest, number)
        return longest

    def _content(self) -> tuple:
        return tuple(tree and (tree.label, tree.word) for tree in self.walk())

    def __eq__(self, other):
        if not isinstance(other, Tree):
            return NotImplemented
        return self is other or self._content() == other._content()

    def __hash__(self):
        return hash(self._content())

    def __str__(self) -> str:
        pieces = []
        for tree in self.walk():
            if tree is None:
                pieces.append(")")
            elif isinstance(tree.children, str):
                pieces.append(f" ({tree.label} {escape_brackets(tree.children)})")
            else:
                pieces.append(f" ({tree.label}")
        return "".join(pieces)[1:]

    def __repr__(self) -> str:
        return f"Tree.parse({str(self)!r})"


class TreeReader:
    """Reads trees from pieces of text, such as lines; spaces join the words of one leaf."""

    def __init__(self) -> None:
        # For each open bracket: the label and words read so far, and the finished children.
        self._open: list[tuple[list[str], list[Tree]]] = []

    @property
    def depth(self) -> int:
        return len(self._open)

    def feed(self, text: str) -> list[Tree]:
        """Returns the trees that end in `text`, which must not end inside a label or a word."""
        finished: list[Tree] = []
        for token in _TOKENS.findall(text):
            texts, trees = self._open[-1] if self._open else ([""], finished)
            if token == "(":
                if len(texts) > 1:
                    raise UserError(_WITHOUT_TAG.format(texts[1]))
                if not texts:
                    if self.depth > 1:
                        rule = "A bracket has no label; only the root of a tree may have none."
                        raise UserError(rule)
                    texts.append("")
                self._open.append(([], []))
            elif not self._open:
                raise UserError(f"There is text outside of brackets: {token!r}.")
            elif token == ")":
                if len(texts) < 2 and not trees:
                    raise UserError(f"There is nothing in the brackets '({''.join(texts)})'.")
                self._open.pop()
                tree = Tree(texts[0], trees or unescape_brackets(" ".join(texts[1:])))
                (self._open[-1][1] if self._open else finished).append(tree)
            elif trees:
                raise UserError(_WITHOUT_TAG.format(token))
            else:
                texts.append(token)
        return finished


def format_tree(tree: Tree, width: int = 80) -> str:
    """Returns a tree in brackets; a constituent that does not fit into a line takes several.

    Args:
        tree: Any tree.
        width: Maximum length of a line, in characters, which deep trees and long words may exceed.

    Example:

    >>> from keras_transformer.parsing import Tree, format_tree
    >>> print(format_tree(Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"), width=30))
    (S
      (NP (DT The) (NN dog))
      (VP (VBZ barks)))
    """
    lines = []
    stack = [(tree, "", "")]  # trees to write, each with its indentation and closing brackets
    while stack:
        tree, indentation, closing = stack.pop()
        line = f"{indentation}{tree}{closing}"
        if isinstance(tree.children, str) or len(line) <= width:
            lines.append(line)
            continue
        lines.append(f"{indentation}({tree.label}")
        *others, last = tree.children
        stack.append((last, indentation + "  ", closing + ")"))
        stack.extend((child, indentation + "  ", "") for child in reversed(others))
    return "\n".join(lines)


def draw_tree(tree: Tree) -> str:
    """Returns a drawing of a tree, with a line for each constituent and each word.

    Args:
        tree: Any tree.

    Example:

    >>> from keras_transformer.parsing import Tree, draw_tree
    >>> print(draw_tree(Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")))
    S
    ├── NP
    │   ├── DT The
    │   └── NN dog
    └── VP
        └── VBZ barks
    """
    lines = []
    stack = [(tree, "", "")]  # trees to draw, each with the text before it and before its children
    while stack:
        tree, before, below = stack.pop()
        if isinstance(tree.children, str):
            lines.append(f"{before}{tree.label} {tree.children}")
            continue
        lines.append(before + tree.label)
        *others, last = tree.children
        stack.append((last, below + "└── ", below + "    "))
        stack.extend((child, below + "├── ", below + "│   ") for child in reversed(others))
    return "\n".join(lines)


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


# Returns the words of a sentence; U+00A0 does not separate them.
split_words = re.compile(rf"[^{SPACE}]+").findall


def is_symbol(text: str) -> bool:
    """Returns whether `text` can be a label, a tag or a word: no spaces, no round brackets."""
    return bool(text) and _LABEL.fullmatch(text) is not None


def escape_brackets(word: str) -> str:
    """Returns `word` with its round brackets as in treebanks, `-LRB-` and `-RRB-`."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def unescape_brackets(word: str) -> str:
    """Returns `word` with `(` for `-LRB-` and `)` for `-RRB-`."""
    return word.replace("-LRB-", "(").replace("-RRB-", ")") if "-" in word else word
