"""`TreeBuilder`: a tree over given words, from any sequence of symbols."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.parsing.trees import PLACEHOLDER, Tree, unescape_brackets


class RebuiltTree(NamedTuple):
    """A tree made of a sequence of symbols.

    Attributes:
        tree: the tree, over the words of the input.
        num_repairs: number of changes that the sequence needed; 0 if it was well-formed.

    Example:

    >>> from keras_transformer.parsing import Linearization
    >>> Linearization().rebuild(["(S", "XX", ")S"], ["Stop"])
    RebuiltTree(tree=Tree.parse('(S (XX Stop))'), num_repairs=0)
    """

    tree: Tree
    num_repairs: int

    @property
    def is_well_formed(self) -> bool:
        """Whether the sequence was already a tree over the words."""
        return self.num_repairs == 0


@dataclasses.dataclass
class TreeBuilder:
    """Takes symbols and words in any order and makes a tree, as `Linearization.rebuild` says."""

    words: Sequence[str]
    tags: Sequence[str] | None  # None takes the tags from the symbols
    root_label: str
    written: Sequence[str]  # the expected spelling of each word in the sequence
    num_repairs: int = 0
    _next_word: int = 0
    _root_has_ended: bool = False

    def __post_init__(self):
        self._open: list[tuple[str, list[Tree]]] = []  # from the root to the innermost
        self._depths: dict[str, list[int]] = defaultdict(list)  # places of a label in `_open`

    def open(self, label: str) -> None:
        """Begins a constituent."""
        self._reopen_root()
        self._depths[label].append(len(self._open))
        self._open.append((label, []))

    def add_word(self, tag: str | None, word: str | None = None) -> None:
        """Adds the next word of the sentence, with the `tag` and `word` of the sequence."""
        if self._next_word == len(self.words):
            self.num_repairs += 1
            return
        written = self.written[self._next_word]
        self.num_repairs += word is not None and unescape_brackets(word) != written
        if not self._open:
            self.num_repairs += 1
            self.open(self.root_label)
        self._reopen_root()
        self._append_word(tag)

    def close(self, label: str) -> None:
        """Ends the innermost constituent of a label; for an empty label, the innermost of all."""
        if not self._open or self._root_has_ended:
            self.num_repairs += 1
            return
        if label and not self._depths[label]:
            self.num_repairs += 1
            label = ""
        innermost = len(self._open) - 1
        depth = self._depths[label][-1] if label else innermost
        self.num_repairs += innermost - depth
        self._end_to(max(depth, 1))
        if depth == 0:
            self._root_has_ended = bool(self._open[0][1])
            if not self._root_has_ended:  # A root must have words.
                self.num_repairs += 1
                self._pop()

    def finish(self) -> RebuiltTree:
        """Returns the tree, with the words that are left, and the number of repairs."""
        if not self._open:
            self.num_repairs += 1
            self.open(self.root_label)
        self.num_repairs += len(self.words) - self._next_word
        while self._next_word < len(self.words):
            self._append_word(None)
        self.num_repairs += len(self._open) - self._root_has_ended
        self._end_to(1)
        return RebuiltTree(Tree(*self._pop()), self.num_repairs)

    def _reopen_root(self) -> None:
        self.num_repairs += self._root_has_ended
        self._root_has_ended = False

    def _append_word(self, tag: str | None) -> None:
        if self.tags is not None:
            tag = self.tags[self._next_word]
        self._open[-1][1].append(Tree(tag or PLACEHOLDER, self.words[self._next_word]))
        self._next_word += 1

    def _end_to(self, depth: int) -> None:
        """Ends all open constituents but the outermost `depth`."""
        while len(self._open) > depth:
            label, children = self._pop()
            if children:
                self._open[-1][1].append(Tree(label, children))
            else:
                self.num_repairs += 1

    def _pop(self) -> tuple[str, list[Tree]]:
        label, children = self._open.pop()
        self._depths[label].pop()
        return label, children
