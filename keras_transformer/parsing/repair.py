"""Makes a well-formed tree over given words of whatever a model has written."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.parsing.trees import Tree

_SYMBOL = re.compile(r"[^ \t\r\n\f\v()]+")


def is_symbol(text: str) -> bool:
    """Returns whether `text` can be a label, a tag or an escaped word: no spaces, no brackets."""
    return _SYMBOL.fullmatch(text) is not None


class RebuiltTree(NamedTuple):
    """A tree made of a sequence of symbols.

    Attributes:
        tree: the tree, over the words of the input.
        num_repairs: how many changes the sequence needed; 0 if it was well-formed.

    Example:

    >>> from keras_transformer.parsing import Linearization
    >>> Linearization().rebuild(["(S", "XX", ")S"], ["Stop"])
    RebuiltTree(tree=Tree.parse('(S (XX Stop))'), num_repairs=0)
    """

    tree: Tree
    num_repairs: int

    @property
    def is_well_formed(self) -> bool:
        """Whether the sequence was that of a tree over as many words."""
        return self.num_repairs == 0


class TreeBuilder:
    """Takes opening and closing symbols and words one by one, in any order, and makes a tree.

    `Linearization.rebuild` says what is done where something is missing or too much.

    Args:
        words: the words of the sentence, one at least.
        tags: their tags, or None: take those of the symbols.
        root_label: label of the root, if nothing has opened one.
        unknown_tag: tag of a word that has none.
        written: what the sequence should have in the place of each word.

    Attributes:
        num_repairs: how many changes were made so far.

    Example:

    >>> builder = TreeBuilder(["It", "works"], None, "S", "XX", ["0", "1"])
    >>> builder.open("NP")
    >>> builder.add_word("PRP")
    >>> builder.finish()
    RebuiltTree(tree=Tree.parse('(NP (PRP It) (XX works))'), num_repairs=2)
    """

    def __init__(
        self,
        words: Sequence[str],
        tags: Sequence[str] | None,
        root_label: str,
        unknown_tag: str,
        written: Sequence[str],
    ):
        self.num_repairs = 0
        self._words, self._tags, self._written = words, tags, written
        self._root_label, self._unknown_tag = root_label, unknown_tag
        self._next_word = 0
        self._open: list[tuple[str, list[Tree]]] = []  # The root first, the innermost last.
        self._depths: dict[str, list[int]] = defaultdict(list)  # Where in `_open` a label stands.
        self._root_has_ended = False

    def open(self, label: str) -> None:
        """Begins a constituent."""
        self._go_on_in_root()
        self._depths[label].append(len(self._open))
        self._open.append((label, []))

    def add_word(self, tag: str | None, word: str | None = None) -> None:
        """Adds the next word of the sentence; `word` is what the sequence has in its place."""
        if self._next_word == len(self._words):
            self.num_repairs += 1
            return
        if word is not None and word != self._written[self._next_word]:
            self.num_repairs += 1
        if not self._open:
            self.num_repairs += 1
            self.open(self._root_label)
        self._go_on_in_root()
        self._append_word(tag)

    def close(self, label: str) -> None:
        """Ends the innermost constituent of a label, or, if the label is empty, of any."""
        if not self._open or self._root_has_ended:
            self.num_repairs += 1
            return
        innermost = len(self._open) - 1
        if label and not self._depths[label]:
            self.num_repairs += 1
            label = ""
        depth = self._depths[label][-1] if label else innermost
        self.num_repairs += innermost - depth
        while len(self._open) > depth + 1:
            self._end_innermost()
        if depth > 0:
            self._end_innermost()
        elif self._open[0][1]:
            self._root_has_ended = True
        else:  # A root without words is none.
            self.num_repairs += 1
            self._pop()

    def finish(self) -> RebuiltTree:
        """Returns the tree, with the words that are left, and the number of repairs."""
        if not self._open:
            self.num_repairs += 1
            self.open(self._root_label)
        self.num_repairs += len(self._words) - self._next_word
        while self._next_word < len(self._words):
            self._append_word(None)
        self.num_repairs += len(self._open) - self._root_has_ended
        while len(self._open) > 1:
            self._end_innermost()
        return RebuiltTree(Tree(*self._pop()), self.num_repairs)

    def _go_on_in_root(self):
        if self._root_has_ended:
            self.num_repairs += 1
            self._root_has_ended = False

    def _append_word(self, tag):
        number = self._next_word
        self._next_word += 1
        given = self._tags[number] if self._tags is not None else tag
        self._open[-1][1].append(Tree(given or self._unknown_tag, self._words[number]))

    def _end_innermost(self):
        label, children = self._pop()
        if children:
            self._open[-1][1].append(Tree(label, children))
        else:
            self.num_repairs += 1

    def _pop(self):
        label, children = self._open.pop()
        self._depths[label].pop()
        return label, children
