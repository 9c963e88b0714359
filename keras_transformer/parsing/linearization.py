"""`Linearization`: trees as sequences of symbols, which a Transformer reads and writes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from annotated_types import Predicate

from keras_transformer.parsing.joined_symbols import join_symbols, split_symbols
from keras_transformer.parsing.trees import (
    PLACEHOLDER,
    Tree,
    escape_brackets,
    is_symbol,
    unescape_brackets,
)
from keras_transformer.settings.base import Allowed, Count, Settings, settings_dataclass

# They stand for the words in order; after 99 comes 0 again.
NUMBERS = tuple(map(str, range(100)))
_Label = Annotated[str, Predicate(is_symbol), Allowed("a label without spaces and round brackets")]


class RebuiltTree(NamedTuple):
    """A tree made of a sequence of symbols.

    Attributes:
        tree: The tree, over the words of the input.
        num_repairs: Number of changes that the sequence needed; 0 if it was well-formed.

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


@settings_dataclass
class Linearization(Settings):
    """A form of trees as sequences of symbols.

    A constituent is an opening symbol, its parts, and a closing symbol, `(NP ... )NP`. A leaf is
    one symbol; with its tag and its word or number it is three, `(PRP It )PRP`. In the joined form,
    a tree has as many symbols as words.

    Args:
        words: Write the words, with `-LRB-` and `-RRB-` for brackets; if False, `XX`.
        tags: Write the tags of words; if False, they are `XX` in a tree made of symbols.
        labelled_closing: Write `)NP` to close a constituent; if False, `)`.
        root_label: Label of the root, if the symbols do not have one.
        numbers: Write the number of each word, from 0 to 99 and then from 0 again.
        joined: Write the brackets around each word as one symbol: `(S(NP` before it, `))` after it
            and `(NP)` on both sides of it; `XX` for a word without brackets. The brackets after the
            last word are left out.
        max_unary: Maximum number of constituents in a row that have a single part each. It is 3 in
            the trees of CRAFT, as in `(SBAR (S (VP (VBG noting))))`. Searches stay within it,
            except in the joined form, whose symbols bound it: each opens as many as in training.

    Raises:
        ValueError: If a value is not allowed, `words` and `numbers` are both True, or `joined` and
            another form are.

    Example:

    >>> from keras_transformer.parsing import Linearization, Tree
    >>> linearization = Linearization(tags=True)
    >>> symbols = linearization.to_symbols(Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))"))
    >>> " ".join(symbols)
    '(S (NP PRP )NP (VP VBZ )VP )S'
    >>> print(linearization.to_tree(symbols, ["He", "sleeps"]))
    (S (NP (PRP He)) (VP (VBZ sleeps)))

    Reference: Vinyals et al. (2015), "Grammar as a Foreign Language", section 2.2.
    """

    words: bool = False
    tags: bool = False
    labelled_closing: bool = True
    root_label: _Label = "S"
    numbers: bool = False
    joined: bool = False
    max_unary: Count = 8

    def __post_init__(self):
        if self.words and self.numbers:
            rule = "`words` and `numbers` must not both be True"
            raise ValueError(f"{rule}. Received: words=True, numbers=True")
        others = ("words", "tags", "numbers", "labelled_closing")
        if self.joined and (wrong := [name for name in others if getattr(self, name)]):
            rule = f"With `joined`, {', '.join(f'`{name}`' for name in others)} must be False"
            raise ValueError(f"{rule}. Received: {wrong[0]}=True")

    @property
    def leaf_is_one_symbol(self) -> bool:
        """Whether a leaf is one symbol, not three."""
        return not (self.tags and (self.words or self.numbers))

    def role(self, symbol: str) -> tuple[str, str]:
        """Returns `"("` or `")"` and the label, `"word"` and the symbol, or `""` and the symbol.

        Args:
            symbol: Any string, also one that this form does not have.
        """
        if symbol == ")" or (symbol.startswith(("(", ")")) and is_symbol(symbol[1:])):
            return symbol[0], symbol[1:]
        is_any_word = (self.words or self.numbers or self.tags) and is_symbol(symbol)
        return ("word" if is_any_word or symbol == PLACEHOLDER else ""), symbol

    def to_symbols(self, tree: Tree) -> list[str]:
        """Returns the symbols of a tree.

        Args:
            tree: A constituent, as `clean_tree` returns it.

        Raises:
            ValueError: If `tree` is a leaf, a label is empty, a word to write contains a space, or
                more than `max_unary` constituents in a row have a single part, except in the joined
                form.
        """
        if tree.is_leaf:
            raise ValueError(f"`tree` must be a constituent, not a leaf. Received: {tree!r}")
        # A parser in the joined form may answer with any tree that its symbols can write.
        if not self.joined and tree.max_unary() > self.max_unary:
            rule = f"At most {self.max_unary} constituents in a row may have a single part"
            raise ValueError(f"{rule} (`max_unary`). Received: {tree!r}")
        symbols: list[str] = []
        labels: list[str] = []
        num_words = 0
        for part in tree.walk():
            if part is None:
                symbols.append(self._closing(labels.pop()))
            elif not part.label or (self.words and " " in (part.word or "")):
                rule = "Labels must not be empty, and words must not contain spaces, as in trees"
                raise ValueError(f"{rule} from `clean_tree`. Received: {part!r}")
            elif part.is_leaf:
                symbols += self._leaf(part, num_words)
                num_words += 1
            else:
                symbols.append(f"({part.label}")
                labels.append(part.label)
        return join_symbols(symbols) if self.joined else symbols

    def to_tree(
        self, symbols: Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None
    ) -> Tree:
        """Returns a tree over the words of the input, for any symbols.

        Args:
            symbols: Any strings; those of `to_symbols` give back the same constituents.
            words: The words of the sentence, at least one; otherwise a `ValueError` is raised.
            tags: The tags of all words, which replace those in `symbols`.
        """
        return self.rebuild(symbols, words, tags).tree

    def rebuild(
        self, symbols: Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None
    ) -> RebuiltTree:
        """Returns the tree of `to_tree`, and the number of repairs that it needed.

        Symbols that are unknown or too many are left out, what is missing is added, in linear time.

        Args:
            symbols, words, tags: As in `to_tree`.

        Example:

        >>> from keras_transformer.parsing import Linearization
        >>> linearization = Linearization()
        >>> rebuilt = linearization.rebuild(["(S", "(NP", "XX", ")NP", "(VP"], ["It", "works"])
        >>> print(rebuilt.tree, rebuilt.num_repairs, rebuilt.is_well_formed)
        (S (NP (XX It)) (VP (XX works))) 3 False
        """
        if not words:
            raise ValueError("A tree must have words. Received: words=[]")
        if tags is not None and len(tags) != len(words):
            rule = "There must be as many tags as words"
            raise ValueError(f"{rule}. Received: {len(tags)} tags and {len(words)} words")
        written = list(map(_number, range(len(words)))) if self.numbers else words
        # In the joined form, searches do not count the constituents in a row.
        max_unary = None if self.joined else self.max_unary
        builder = _TreeBuilder(words, tags, written, self.root_label, max_unary)
        if self.leaf_is_one_symbol:
            for symbol in split_symbols(symbols) if self.joined else symbols:
                self._read(symbol, builder)
        else:
            self._read_tagged_words(list(symbols), builder)
        return builder.finish()

    def _read(self, symbol, builder):
        kind, label = self.role(symbol)
        if kind == "(":
            builder.open(label)
        elif kind == ")":
            # A label that is missing, or that this form does not write, is a repair.
            builder.num_repairs += bool(label) != self.labelled_closing
            builder.close(label if self.labelled_closing else "")
        elif kind == "word":
            is_written = self.words or self.numbers
            builder.add_word(None if is_written else label, label if is_written else None)
        else:
            builder.num_repairs += 1

    def _read_tagged_words(self, symbols, builder):
        position = 0
        while position < len(symbols):
            tag, *others = symbols[position : position + 3]
            if tag.startswith("(") and is_symbol(tag[1:]) and others and is_symbol(others[0]):
                is_closed = others[1:] == [self._closing(tag[1:])]
                builder.add_word(tag[1:], others[0])
                builder.num_repairs += not is_closed
                position += 2 + is_closed
            else:
                builder.num_repairs += is_symbol(tag)  # The word has no tag.
                self._read(tag, builder)
                position += 1

    def _leaf(self, leaf, position):
        if not (self.words or self.numbers):
            return [leaf.label if self.tags else PLACEHOLDER]
        word = escape_brackets(leaf.word) if self.words else _number(position)
        return [f"({leaf.label}", word, self._closing(leaf.label)] if self.tags else [word]

    def _closing(self, label):
        return f"){label}" if self.labelled_closing else ")"


def _number(position):
    return NUMBERS[position % len(NUMBERS)]


class _TreeBuilder:
    """Makes a tree over given words from symbols in any order, and counts the repairs."""

    def __init__(self, words, tags, written, root_label, max_unary):
        self.num_repairs = 0
        self._words = words
        self._tags = tags  # None takes the tags from the symbols
        self._written = written  # the expected spelling of each word in the sequence
        self._root_label = root_label
        self._max_unary = max_unary
        self._num_unary = 0  # constituents in a row with a single part, down from the last part
        self._next_word = 0
        self._root_has_ended = False
        self._open: list[tuple[str, list[Tree]]] = []  # from the root to the innermost
        self._depths: dict[str, list[int]] = defaultdict(list)  # of each label in `_open`

    def open(self, label):
        self._reopen_root()
        self._depths[label].append(len(self._open))
        self._open.append((label, []))

    def add_word(self, tag, word):
        """Adds the next word of the sentence, with the tag and the word of the sequence if any."""
        if self._next_word == len(self._words):
            self.num_repairs += 1
            return
        written = self._written[self._next_word]
        self.num_repairs += word is not None and unescape_brackets(word) != written
        if not self._open:
            self.num_repairs += 1
            self.open(self._root_label)
        self._reopen_root()
        self._append_word(tag)

    def close(self, label):
        """Ends the innermost constituent of a label; for an empty label, the innermost of all."""
        if not self._open or self._root_has_ended:
            self.num_repairs += 1
            return
        depth = innermost = len(self._open) - 1
        if label and self._depths[label]:
            depth = self._depths[label][-1]
            self.num_repairs += innermost - depth
        elif label:
            self.num_repairs += 1
        self._end_to(max(depth, 1))
        if depth == 0:
            self._root_has_ended = bool(self._open[0][1])
            if not self._root_has_ended:  # A root must have words.
                self.num_repairs += 1
                self._pop()

    def finish(self):
        """Returns the tree, with the words that are left, and the number of repairs."""
        if not self._open:
            self.num_repairs += 1
            self.open(self._root_label)
        self.num_repairs += len(self._words) - self._next_word
        while self._next_word < len(self._words):
            self._append_word(None)
        self.num_repairs += len(self._open) - self._root_has_ended
        self._end_to(1)
        label, children = self._pop()
        if self._exceeds_max_unary(children):
            children = children[0].children
        return RebuiltTree(Tree(label, children), self.num_repairs)

    def _reopen_root(self):
        self.num_repairs += self._root_has_ended
        self._root_has_ended = False

    def _append_word(self, tag):
        if self._tags is not None:
            tag = self._tags[self._next_word]
        self._open[-1][1].append(Tree(tag or PLACEHOLDER, self._words[self._next_word]))
        self._next_word += 1
        self._num_unary = 0

    def _exceeds_max_unary(self, children):
        """Counts a constituent that ends; returns whether there are too many in a row."""
        is_one_more = len(children) == 1 and self._num_unary == self._max_unary
        if not is_one_more:
            self._num_unary = self._num_unary + 1 if len(children) == 1 else 0
        self.num_repairs += is_one_more
        return is_one_more

    def _end_to(self, depth):
        """Ends all open constituents but the outermost `depth`."""
        while len(self._open) > depth:
            label, children = self._pop()
            if children:
                is_left_out = self._exceeds_max_unary(children)
                self._open[-1][1].append(children[0] if is_left_out else Tree(label, children))
            else:
                self.num_repairs += 1

    def _pop(self):
        label, children = self._open.pop()
        self._depths[label].pop()
        return label, children
