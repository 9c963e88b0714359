"""Constituency trees, and how they are read from bracketed text, `(S (NP (DT The) ...) ...)`."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from keras_transformer.errors import UserError

# Only these separate: a word may hold other spaces, such as U+00A0 or U+2009.
_SPACE = " \t\r\n\f\v"
_TOKENS = re.compile(rf"[()]|[^{_SPACE}()]+")
_SPACES = re.compile(rf"[{_SPACE}]+")
_LABEL = re.compile(rf"[^{_SPACE}()]*")
_WORD = re.compile(rf"[^{_SPACE}]+(?: [^{_SPACE}]+)*")


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent with its parts, or a leaf: a tag with its word.

    Trees are immutable, and equal if their labels and words are. Nothing here recurses, so a tree
    may be as deep as it likes. Words are as in the text: a bracket that is a word is `(` in `word`
    and `-LRB-` where the tree is written.

    Args:
        label: what the constituent is, "NP"; of a leaf, its part-of-speech tag, "NN". The root of a
            treebank's tree may have an empty one.
        children: the parts, one `Tree` at least; of a leaf, its word (`str`).

    Raises:
        ValueError: if the label holds spaces or brackets, there are no children, or the word is
            empty, begins or ends with a space, or holds a line break.

    Example:

    >>> from keras_transformer.parsing import Tree
    >>> tree = Tree("NP", [Tree("DT", "the"), Tree("NN", "dog")])
    >>> print(tree)
    (NP (DT the) (NN dog))
    >>> tree == Tree.parse("(NP (DT the) (NN dog))")
    True
    >>> tree.children[1].word
    'dog'
    """

    label: str
    children: "Sequence[Tree] | str"

    def __post_init__(self):
        if not isinstance(self.label, str) or not _LABEL.fullmatch(self.label):
            raise ValueError(
                "The label of a tree must be a string without spaces and round brackets. "
                f"Received: label={self.label!r}"
            )
        if isinstance(self.children, str):
            if not self.label or not _WORD.fullmatch(self.children):
                raise ValueError(
                    "A leaf needs a tag and a word, which is not empty and may have single spaces "
                    f"within. Received: label={self.label!r}, children={self.children!r}"
                )
            return
        children = tuple(self.children)
        if not children or not all(isinstance(child, Tree) for child in children):
            raise ValueError(
                "The children of a tree must be trees, one at least, or a word. "
                f"Received: label={self.label!r}, children={children!r}"
            )
        object.__setattr__(self, "children", children)

    @classmethod
    def parse(cls, text: str) -> "Tree":
        """Reads the one tree of a bracketed text.

        Args:
            text: the tree, on one line or several.

        Returns:
            `Tree`.

        Raises:
            UserError: if the text is not exactly one well-formed tree.
        """
        reader = TreeReader()
        trees = reader.feed(text)
        reader.finish()
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
        """Yields every tree within, before its children; None wherever a constituent ends."""
        stack: list[Tree | None] = [self]
        while stack:
            tree = stack.pop()
            yield tree
            if tree is not None and not isinstance(tree.children, str):
                stack.append(None)
                stack.extend(reversed(tree.children))

    def subtrees(self) -> "Iterator[Tree]":
        """Yields every tree within, leaves too: this one first, each before its children."""
        return (tree for tree in self.walk() if tree is not None)

    def leaves(self) -> Iterator[tuple[str, str]]:
        """Yields the tag and the word of every leaf, from left to right."""
        return ((tree.label, tree.children) for tree in self.subtrees() if tree.is_leaf)

    def words(self) -> list[str]:
        """Returns the words from left to right."""
        return [word for _, word in self.leaves()]

    def tags(self) -> list[str]:
        """Returns the tags of the words from left to right."""
        return [tag for tag, _ in self.leaves()]

    def _written(self) -> tuple:
        """What two equal trees have in common."""
        return tuple(
            tree and (tree.label, tree.children if tree.is_leaf else None) for tree in self.walk()
        )

    def __eq__(self, other):
        if not isinstance(other, Tree):
            return NotImplemented
        return self is other or self._written() == other._written()

    def __hash__(self):
        return hash(self._written())

    def __str__(self) -> str:
        pieces = []
        for tree in self.walk():
            if tree is None:
                pieces.append(")")
            elif tree.is_leaf:
                pieces.append(f" ({tree.label} {escape_brackets(tree.children)})")
            else:
                pieces.append(f" ({tree.label}")
        return "".join(pieces)[1:]

    def __repr__(self) -> str:
        return f"Tree.parse({str(self)!r})"


class TreeReader:
    """Makes trees of bracketed text that comes in pieces, such as the lines of a file.

    A leaf may hold several words (a few do in treebanks); they are one word with spaces within.

    Example:

    >>> reader = TreeReader()
    >>> reader.feed("( (NP (DT the)"), reader.depth
    ([], 2)
    >>> reader.feed("(NN dog)) )")
    [Tree.parse('( (NP (DT the) (NN dog)))')]
    """

    def __init__(self):
        # Of each bracket that is open: its label (none until it is read), its words, its trees.
        self._open: list[tuple[list[str], list[str], list[Tree]]] = []

    @property
    def depth(self) -> int:
        """How many brackets are open."""
        return len(self._open)

    def feed(self, text: str) -> list[Tree]:
        """Returns the trees that end in `text`, the next piece.

        Args:
            text: any part of the whole text that cuts no label and no word in two.

        Returns:
            `list[Tree]`.

        Raises:
            UserError: if the brackets cannot be those of trees. What was read is of no use then.
        """
        trees = []
        for token in _TOKENS.findall(text):
            if token == "(":
                self._begin()
            elif token == ")":
                tree = self._end()
                if self._open:
                    self._open[-1][2].append(tree)
                else:
                    trees.append(tree)
            else:
                self._add(token)
        return trees

    def finish(self) -> None:
        """Raises `UserError` if a bracket is still open."""
        if self._open:
            raise UserError(f"The text ends within a tree. Received: {self.depth} open brackets")

    def _begin(self):
        if self._open:
            label, words, _ = self._open[-1]
            if words:
                raise UserError(f"The word {words[0]!r} has no tag: expected '(TAG {words[0]})'.")
            if not label:
                if len(self._open) > 1:
                    raise UserError("A bracket has no label, which only that of a whole tree may.")
                label.append("")
        self._open.append(([], [], []))

    def _add(self, token):
        if not self._open:
            raise UserError(f"There is text outside of brackets: {token!r}.")
        label, words, trees = self._open[-1]
        if not label:
            label.append(token)
        elif trees:
            raise UserError(f"The word {token!r} has no tag: expected '(TAG {token})'.")
        else:
            words.append(token)

    def _end(self):
        if not self._open:
            raise UserError("There is a closing bracket too many.")
        label, words, trees = self._open.pop()
        if not words and not trees:
            raise UserError(f"There is nothing in the brackets '({''.join(label)})'.")
        return Tree(label[0], unescape_brackets(" ".join(words)) if words else trees)


def split_words(text: str) -> list[str]:
    """Returns the words of a sentence: what spaces, tabs and line ends separate, and no other.

    Example:

    >>> split_words(" It\tworks\u00a0well ")
    ['It', 'works\xa0well']
    """
    return [word for word in _SPACES.split(text) if word]


def escape_brackets(word: str) -> str:
    """Returns `word` with its round brackets as treebanks write them, `-LRB-` and `-RRB-`."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def unescape_brackets(word: str) -> str:
    """Returns `word` with `(` for `-LRB-` and `)` for `-RRB-`."""
    if "-" not in word:
        return word
    return word.replace("-LRB-", "(").replace("-RRB-", ")")
