"""Constituency trees, and their text in brackets, `(S (NP (DT The) ...) ...)`."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from keras_transformer.errors import UserError

# No other characters separate: a word may contain other spaces, such as U+00A0 or U+2009.
SPACE = r" \t\r\n\f\v"
_TOKENS = re.compile(rf"[()]|[^{SPACE}()]+")
_LABEL = re.compile(rf"[^{SPACE}()]*")
_LEAF = re.compile(rf"[^{SPACE}]+(?: [^{SPACE}]+)*")
PLACEHOLDER = "XX"  # It stands for a word, and for an unknown tag.
_WITHOUT_TAG = "The word {0!r} has no tag: expected '(TAG {0})'."


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
                if token == ")":
                    raise UserError("There is a closing bracket too many.")
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
