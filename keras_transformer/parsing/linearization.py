"""Trees as sequences of symbols, which a sequence-to-sequence model reads and writes."""

import dataclasses
from collections.abc import Sequence

from keras_transformer.parsing.repair import RebuiltTree, TreeBuilder, is_symbol
from keras_transformer.parsing.trees import Tree, escape_brackets, unescape_brackets

# For a word, and for its tag where that is not known.
PLACEHOLDER = "XX"
# For the words in their order; after the last of these the first follows again.
NUMBERS = tuple(map(str, range(100)))


@dataclasses.dataclass(frozen=True)
class Linearization:
    """A way to write trees as sequences of symbols, and back.

    A constituent is an opening symbol, its parts, and a closing symbol, `(NP ... )NP`. What stands
    for a leaf depends on `words` and `tags`; the tree of `It works` in each way:

    | `words` | `tags` | symbols |
    |---|---|---|
    | False | False | `(S (NP XX )NP (VP XX )VP )S` |
    | False | True | `(S (NP PRP )NP (VP VBZ )VP )S` |
    | True | False | `(S (NP It )NP (VP works )VP )S` |
    | True | True | `(S (NP (PRP It )PRP )NP (VP (VBZ works )VBZ )VP )S` |

    `numbers=True` writes each word as its number, from 0 to 99 and on from 0:
    `(S (NP 0 )NP (VP 1 )VP )S`. A model then sees how far it has come in the sentence, where it
    would have to count placeholders.

    No symbol holds a space. A word's brackets are written `-LRB-` and `-RRB-`, so only opening and
    closing symbols have any. A tree made of symbols has the words of the input, and the tags too if
    they are given.

    Args:
        words: write the words; if False, the words are those of the input, in their order.
        tags: write the tags of words; if False, `XX` is the tag of every word of a tree made again.
        labelled_closing: closing symbols have the label, `)NP`; if False they are all `)`.
        root_label: label of the tree of a sequence that says nothing of its root.
        numbers: write the numbers of the words in their places.

    Raises:
        ValueError: if `root_label` is empty or holds spaces or brackets, another argument is no
            bool, or both `words` and `numbers` are True.

    Example:

    >>> from keras_transformer.parsing import Linearization, Tree
    >>> linearization = Linearization(tags=True)
    >>> symbols = linearization.to_symbols(Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))"))
    >>> " ".join(symbols)
    '(S (NP PRP )NP (VP VBZ )VP )S'
    >>> print(linearization.to_tree(symbols, ["He", "sleeps"]))
    (S (NP (PRP He)) (VP (VBZ sleeps)))

    Reference: Vinyals et al. (2015), "Grammar as a Foreign Language", section 2.2, where
    `words=False, tags=False`.
    """

    words: bool = False
    tags: bool = False
    labelled_closing: bool = True
    root_label: str = "S"
    numbers: bool = False

    def __post_init__(self):
        for name in ("words", "tags", "labelled_closing", "numbers"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{name} must be True or False. Received: {name}={getattr(self, name)!r}"
                )
        if not isinstance(self.root_label, str) or not is_symbol(self.root_label):
            raise ValueError(
                "root_label must be a label without spaces and round brackets. "
                f"Received: root_label={self.root_label!r}"
            )
        if self.words and self.numbers:
            raise ValueError(
                "A word is written as itself or as its number. Received: words=True, numbers=True"
            )

    @property
    def leaf_is_one_symbol(self) -> bool:
        """Whether a leaf is one symbol; else its word or number stands between two of its tag."""
        return not (self.tags and (self.words or self.numbers))

    def to_dict(self) -> dict:
        """Returns the settings as a dict, for the files that a model is saved with."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: dict) -> "Linearization":
        """Returns the linearisation that `to_dict` wrote down.

        Args:
            settings: dict of any of the arguments.

        Raises:
            ValueError: for an unknown setting, or a value that has no meaning.

        Example:

        >>> from keras_transformer.parsing import Linearization
        >>> Linearization.from_dict({"tags": True}).tags
        True
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(settings, dict) or not set(settings) <= set(known):
            raise ValueError(
                f"The settings of a linearisation are {known}. Received: settings={settings!r}"
            )
        return cls(**settings)

    def to_symbols(self, tree: Tree) -> list[str]:
        """Writes a tree as symbols.

        Args:
            tree: a constituent, as `clean_tree` gives it.

        Returns:
            `list[str]`.

        Raises:
            ValueError: if `tree` is a leaf, or no symbol can hold what is in it: an empty label, or
                a word with a space.
        """
        if tree.is_leaf:
            raise ValueError(f"A leaf alone has no constituent to write. Received: {tree!r}")
        symbols, labels, num_words = [], [], 0
        for part in tree.walk():
            if part is None:
                symbols.append(self._closing(labels.pop()))
                continue
            word = escape_brackets(part.word) if part.is_leaf else ""
            if not part.label or (self.words and " " in word):
                raise ValueError(
                    "Labels must not be empty, nor words hold spaces; `clean_tree` sees to that. "
                    f"Received: {part!r}"
                )
            if not part.is_leaf:
                symbols.append(f"({part.label}")
                labels.append(part.label)
                continue
            if self.numbers:
                word = number_of_word(num_words)
            num_words += 1
            if not self.leaf_is_one_symbol:
                symbols += [f"({part.label}", word, self._closing(part.label)]
            elif self.words or self.numbers:
                symbols.append(word)
            else:
                symbols.append(part.label if self.tags else PLACEHOLDER)
        return symbols

    def to_tree(
        self, symbols: Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None
    ) -> Tree:
        """Makes a tree over the words of the input, whatever the symbols are.

        Args:
            symbols: any strings; a sequence that `to_symbols` has made gives its tree again.
            words: the words of the sentence, one at least.
            tags: the tags of the words, instead of those that `symbols` may have.

        Returns:
            `Tree`, whose words are `words`.

        Raises:
            ValueError: if there are no words, or not as many tags as words.
        """
        return self.rebuild(symbols, words, tags).tree

    def rebuild(
        self, symbols: Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None
    ) -> RebuiltTree:
        """Makes a tree as `to_tree` does, and counts what had to be repaired for it.

        In the order of the symbols:

        - What is no symbol of this linearisation is left out. A wrong word or number is the next
          word all the same.
        - A word before any opening symbol begins a constituent `root_label`, the root.
        - A closing symbol closes the innermost constituent of its label, and all within; if none
          has that label, the innermost of all.
        - What follows the end of the root is put into the root.
        - Words that the sentence does not have are left out; words that the sequence does not have
          are put, at the end, into the innermost constituent that is still open, or the root.
        - What is still open is closed. Constituents without words are left out.

        It takes time in proportion to the lengths.

        Args:
            symbols, words, tags: as of `to_tree`.

        Returns:
            `RebuiltTree`, a named tuple `(tree, num_repairs)`.

        Raises:
            ValueError: as of `to_tree`.

        Example:

        >>> from keras_transformer.parsing import Linearization
        >>> linearization = Linearization()
        >>> rebuilt = linearization.rebuild(["(S", "(NP", "XX", ")NP", "(VP"], ["It", "works"])
        >>> print(rebuilt.tree, rebuilt.num_repairs, rebuilt.is_well_formed)
        (S (NP (XX It)) (VP (XX works))) 3 False
        """
        if not words:
            raise ValueError("A tree needs words; the sentence has none.")
        if tags is not None and len(tags) != len(words):
            raise ValueError(
                "There must be as many tags as words. "
                f"Received: {len(tags)} tags and {len(words)} words"
            )
        written = words
        if self.numbers:
            written = [number_of_word(position) for position in range(len(words))]
        builder = TreeBuilder(words, tags, self.root_label, PLACEHOLDER, written)
        if not self.leaf_is_one_symbol:
            self._read_tagged_words(symbols, builder)
        else:
            for symbol in symbols:
                self._read(symbol, builder)
        return builder.finish()

    def _read(self, symbol, builder):
        if symbol.startswith("(") and is_symbol(symbol[1:]):
            builder.open(symbol[1:])
        elif symbol.startswith(")") and (symbol == ")" or is_symbol(symbol[1:])):
            self._read_closing(symbol, builder)
        elif not is_symbol(symbol):
            builder.num_repairs += 1
        elif self.words or self.numbers:
            builder.add_word(None, unescape_brackets(symbol))
        elif self.tags:
            builder.add_word(symbol)
        elif symbol == PLACEHOLDER:
            builder.add_word(None)
        else:
            builder.num_repairs += 1

    def _read_closing(self, symbol, builder):
        if (symbol == ")") == self.labelled_closing:
            builder.num_repairs += 1  # It has a label and should not, or the reverse.
        builder.close(symbol[1:] if self.labelled_closing else "")

    def _read_tagged_words(self, symbols, builder):
        position = 0
        while position < len(symbols):
            symbol = symbols[position]
            after = symbols[position + 1] if position + 1 < len(symbols) else ""
            if symbol.startswith("(") and is_symbol(symbol[1:]) and is_symbol(after):
                builder.add_word(symbol[1:], unescape_brackets(after))
                position += 2
                if position < len(symbols) and symbols[position] == self._closing(symbol[1:]):
                    position += 1
                else:
                    builder.num_repairs += 1
                continue
            if is_symbol(symbol):
                builder.num_repairs += 1  # A word without a tag.
            self._read(symbol, builder)
            position += 1

    def _closing(self, label):
        return f"){label}" if self.labelled_closing else ")"


def number_of_word(position: int) -> str:
    """Returns the symbol of `NUMBERS` that stands for the word at a position, from 0."""
    return NUMBERS[position % len(NUMBERS)]
