"""Parser: a model, its tokenizers and a search, from the words of a sentence to their tree."""

import logging
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding import BeamSearch
from keras_transformer.inference.batch_inference import one_answer
from keras_transformer.inference.long_texts import cut_sources
from keras_transformer.inference.pipeline import Pipeline, Progress
from keras_transformer.layers.checks import check_boolean
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.trees import Tree, split_words
from keras_transformer.parsing.vocabulary import tree_symbols
from keras_transformer.parsing.well_formed_trees import WellFormedTrees

__all__ = ["Parse", "Parser"]

_LOGGER = logging.getLogger(__name__)
# Tokens of the smallest tree beyond its words: the two symbols of its root, and EOS.
_SMALLEST_TREE = 3


class Parse(NamedTuple):
    """A tree that a search found.

    Attributes:
        tree: a `Tree` over the words of the sentence.
        score: what the search ranks by: a beam search divides the log-probability by its length
            penalty, the other searches leave it as it is.
        log_probability: natural logarithm of the probability of the symbols, EOS counted.
        num_repairs: how many changes what the model wrote needed to be a tree over the words, see
            `Linearization.rebuild`.

    Example:

    >>> from keras_transformer import Parse
    >>> from keras_transformer.parsing import Tree
    >>> parse = Parse(Tree.parse("(S (XX Stop))"), score=-0.4, log_probability=-0.5, num_repairs=0)
    >>> parse.tree.words()
    ['Stop']
    """

    tree: Tree
    score: float
    log_probability: float
    num_repairs: int


class Parser(Pipeline):
    """Parses sentences with a model, its tokenizers and a search.

    The model reads the words, joined with spaces, and writes the tree's symbols, see
    `Linearization`. Every tree is one over exactly the words of its sentence. Where it can, the
    search is constrained to symbols that are such a tree (`WellFormedTrees`); what is not is
    repaired (`Linearization.rebuild`).

    Args:
        model: a `keras_transformer.models.Transformer`.
        source_tokenizer: tokenizer of the words, of the model's `vocab_size`. Round brackets among
            the words are `(` and `)` in its text.
        target_tokenizer: tokenizer of the symbols; None for one that both share.
        linearization: how trees are written; None for `Linearization()`.
        search: a `BeamSearch`, `GreedySearch` or `Sampling`; None for the paper's,
            `BeamSearch(21, 0.3)`.
        extra_length: a tree has at most so many tokens more than its sentence has words, EOS
            counted; 300 as in the paper, at least 3.
        max_source_length: the most tokens of a source, EOS counted; None for 1024. Of longer ones
            the model reads the beginning, with a logged warning; their trees have all words all
            the same. Learned positions allow at most the model's `max_length`.
        recipe: a `TrainingRecipe` (or dict) that `save` writes as well.
        constrained: whether the search is constrained to well-formed trees; None for wherever it
            can be. It can if every symbol is one token of a `SubwordTokenizer`, and every leaf one
            symbol.

    Attributes:
        constrained: whether searches are constrained, unless a call says otherwise.
        tree_symbols: the `TreeSymbols` of the target's vocabulary; None if searches cannot be
            constrained.

    Raises:
        ValueError: if a tokenizer does not fit the model, a number is too small, or the search is
            to be constrained and cannot.

    Example:

    >>> from keras_transformer import Parser, Transformer
    >>> from keras_transformer.data import SubwordTokenizer
    >>> source = SubwordTokenizer(["It", "works", "well"])
    >>> target = SubwordTokenizer(["(S", ")S", "(NP", ")NP", "(VP", ")VP", "XX"])
    >>> model = Transformer.from_preset("tiny", vocab_size=7, target_vocab_size=11)
    >>> parser = Parser(model, source, target)
    >>> parser.constrained
    True
    >>> (tree,) = parser.parse(["It works"])
    >>> tree.words()
    ['It', 'works']

    Reference: Vaswani et al. (2017), section 6.3; Vinyals et al. (2015), "Grammar as a Foreign
    Language".
    """

    task: ClassVar[str] = "parsing"
    settings: ClassVar[tuple[str, ...]] = (*Pipeline.settings, "linearization", "constrained")
    common_settings: ClassVar[tuple[str, ...]] = ("linearization",)
    # Batches are counted with the maximum length of a tree, which few trees come near.
    max_batch_tokens: ClassVar[int] = 65_536

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer,
        linearization: Linearization | None = None,
        search=None,
        extra_length: int = 300,
        max_source_length: int | None = None,
        recipe=None,
        constrained: bool | None = None,
    ):
        super().__init__(
            model,
            source_tokenizer,
            target_tokenizer,
            search or BeamSearch(beam_size=21, length_penalty=0.3),
            extra_length,
            max_source_length,
            recipe,
            self.well_formed_trees,
        )
        if extra_length < _SMALLEST_TREE:
            raise ValueError(
                f"extra_length must be at least {_SMALLEST_TREE}, what the smallest tree needs. "
                f"Received: extra_length={extra_length}"
            )
        self.linearization = linearization or Linearization()
        self.tree_symbols = self._why_unconstrained = None
        try:
            self.tree_symbols = tree_symbols(self.target_tokenizer, self.linearization)
        except ValueError as error:
            self._why_unconstrained = str(error)
        self.constrained = self._check_constrained(constrained, self.tree_symbols is not None)

    @classmethod
    def from_config(cls, config: dict) -> dict:
        if "linearization" in config:
            linearization = Linearization.from_dict(config["linearization"])
            config = {**config, "linearization": linearization}
        return config

    def parse(
        self,
        sentences: Sequence[str | Sequence[str]],
        search=None,
        batch_size: int = 32,
        progress: Progress | None = None,
        constrained: bool | None = None,
        num_streams: int = 1,
    ) -> list[Tree | None]:
        """Parses sentences: sorted by length, in batches, and put back in order.

        Args:
            sentences: sequence of sentences; each a `str` of words separated by white space, of
                which U+00A0 is none, or a sequence of words.
            search: search to use instead of the parser's.
            batch_size: most sentences in a batch; of long sentences, or in a wide beam, fewer are
                taken.
            progress: called after each batch with the numbers of sentences done and in all.
            constrained: whether the search is constrained to well-formed trees; None for what the
                parser is set to.
            num_streams: batches that are searched at the same time, see `Translator.translate`.

        Returns:
            A `Tree` for every sentence, over exactly its words; None for one without words.

        Raises:
            ValueError: if `sentences` is a single string, a word is empty or has white space
                within, or the search is to be constrained and cannot.
        """
        search = one_answer(search or self.search)
        answers = self.parses(sentences, search, batch_size, progress, constrained, num_streams)
        return [found[0].tree if found else None for found in answers]

    def parses(
        self,
        sentences: Sequence[str | Sequence[str]],
        search=None,
        batch_size: int = 32,
        progress: Progress | None = None,
        constrained: bool | None = None,
        num_streams: int = 1,
    ) -> list[list[Parse]]:
        """Parses sentences and returns all answers of the search, with their scores.

        Args:
            sentences, search, batch_size, progress, constrained, num_streams: as in `parse`.

        Returns:
            A list of `Parse` for every sentence, best first; `search.n_best` of them for a
            `BeamSearch`, or as many as there are. A sentence without words has none; one of which
            the search finds nothing, since constraints forbid it or it is longer than the model's
            learned positions, a tree without constituents, with score minus infinity.

        Raises:
            ValueError: as in `parse`.
        """
        words = _checked_sentences(sentences)
        is_constrained = self._check_constrained(constrained, self.constrained)
        num_words = [len(of_sentence) for of_sentence in words]
        limits = ops.convert_to_numpy(self.max_lengths(np.array(num_words, "int32"))).tolist()
        self._warn_of_long_sentences(num_words, limits)
        sources = self.source_tokenizer.encode_batch([" ".join(some) for some in words])
        sources = cut_sources(sources, self.max_source_length - 1, "; their trees have all words")
        answers = self._search(
            [ids if some else None for ids, some in zip(sources, words, strict=True)],
            limits,
            search or self.search,
            batch_size,
            num_streams,
            progress,
            constraint_numbers=num_words if is_constrained else None,
        )
        return [
            [self._to_parse(one, of_sentence) for one in hypotheses or []]
            for hypotheses, of_sentence in zip(answers, words, strict=True)
        ]

    def well_formed_trees(self, num_words) -> WellFormedTrees:
        """Returns the constraint of searches to trees over the words of each sentence.

        Args:
            num_words: int32 `[batch]`.
        """
        return WellFormedTrees(num_words, *self.tree_symbols)

    def _to_parse(self, hypothesis, words):
        symbols = [symbol for symbol in hypothesis.text.split(" ") if symbol]
        tree, num_repairs = self.linearization.rebuild(symbols, words)
        return Parse(tree, hypothesis.score, hypothesis.log_probability, num_repairs)

    def _check_constrained(self, constrained, default):
        if constrained and self._why_unconstrained is not None:
            raise ValueError(
                "The search cannot be constrained to well-formed trees: constrained must be False "
                f"or None. {self._why_unconstrained}"
            )
        if constrained is None:
            return default
        check_boolean("constrained", constrained)
        return constrained

    def _warn_of_long_sentences(self, num_words, limits):
        room = [limit - _SMALLEST_TREE for limit in limits]
        # A sentence without words has no tree, and no limit.
        num_long = sum(
            number > max(limit, 0) for number, limit in zip(num_words, room, strict=True)
        )
        if num_long:
            message = "%d of %d sentences have more words than the model can write a tree of: %d."
            _LOGGER.warning(message, num_long, sum(map(bool, num_words)), max(room))


def _checked_sentences(sentences) -> list[list[str]]:
    """Returns the words of each sentence, or raises a ValueError if there is something else."""
    if isinstance(sentences, str | bytes):
        raise ValueError(
            "sentences must be a list of sentences; put one sentence into a list. "
            f"Received: sentences={sentences!r}"
        )
    words = []
    for index, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            words.append(split_words(sentence))
            continue
        is_sequence = isinstance(sentence, Sequence | np.ndarray) and not isinstance(
            sentence, bytes
        )
        of_sentence = list(sentence) if is_sequence else [None]
        for word in of_sentence:
            if not isinstance(word, str) or split_words(word) != [word]:
                raise ValueError(
                    "A sentence is a string, or a list of words without white space. "
                    f"Received: sentences[{index}]={sentence!r}"
                )
        words.append(of_sentence)
    return words
