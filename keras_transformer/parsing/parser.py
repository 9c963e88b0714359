"""Parser: a model, its tokenizers and a search, from the words of a sentence to their tree."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import EOS_ID
from keras_transformer.decoding import BeamSearch, search_to_dict
from keras_transformer.inference.batch_inference import BatchInference, answer_limits, one_answer
from keras_transformer.inference.inputs import check_vocabulary
from keras_transformer.inference.loading import SETTINGS, TASK_SETTINGS, load_directories
from keras_transformer.inference.long_texts import LARGEST_LENGTH, cut_sources, source_limit
from keras_transformer.inference.results import to_hypotheses
from keras_transformer.inference.saving import write_model_directory
from keras_transformer.inference.translator import Progress
from keras_transformer.layers.checks import check_boolean, check_positive_integer
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.trees import Tree, split_words
from keras_transformer.parsing.vocabulary import tree_symbols
from keras_transformer.parsing.well_formed_trees import WellFormedTrees

__all__ = ["Parse", "Parser"]

_LOGGER = logging.getLogger(__name__)
# Bounds the memory of a batch as that of a translator does. A tree hardly ever comes near its
# maximum length, with which a batch is counted.
MAX_BATCH_TOKENS = 65_536
# The smallest tree of n words has so many tokens more: its root's two symbols, and EOS.
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


class Parser:
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
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.linearization = linearization or Linearization()
        self.search = search or BeamSearch(beam_size=21, length_penalty=0.3)
        self.extra_length = extra_length
        self.recipe = recipe
        check_positive_integer("extra_length", extra_length, LARGEST_LENGTH)
        if extra_length < _SMALLEST_TREE:
            raise ValueError(
                f"extra_length must be at least {_SMALLEST_TREE}, what the smallest tree needs. "
                f"Received: extra_length={extra_length}"
            )
        self.max_source_length = source_limit(max_source_length, model.config.max_length)
        check_vocabulary("source", self.source_tokenizer, model.config.vocab_size)
        check_vocabulary("target", self.target_tokenizer, model.config.output_vocab_size)
        self.tree_symbols = self._why_unconstrained = None
        try:
            self.tree_symbols = tree_symbols(self.target_tokenizer, self.linearization)
        except ValueError as error:
            self._why_unconstrained = str(error)
        self._inference = BatchInference(model, self._well_formed_trees)
        self.constrained = self._check_constrained(constrained, self.tree_symbols is not None)

    @classmethod
    def load(cls, directory, dtype=None) -> "Parser":
        """Loads a model directory that `save` has written, or several.

        Args:
            directory: the model directory; or a list of them, whose models become an `Ensemble`.
                Their vocabularies and linearisations must be the same; the settings, such as the
                search, are those of the first.
            dtype: dtype policy to compute in, such as `"bfloat16"`; None for the global one.

        Returns:
            `Parser`.

        Raises:
            ValueError: for a list without a directory.
            UserError: if a file is missing, damaged, or does not fit the others, or a directory
                holds a translator.
        """
        return load_directories(cls, directory, dtype, task="parsing")

    def save(self, directory):
        """Writes a model directory: config, weights, tokenizers, and the recipe if there is one.

        Args:
            directory: where to; files of other names that are there already stay.

        Returns:
            `pathlib.Path`: the directory.

        Raises:
            UserError: if a file there would be read as a part of the model and is none.
        """
        is_shared = self.target_tokenizer is self.source_tokenizer
        names = SETTINGS + TASK_SETTINGS["parsing"]
        settings = {name: getattr(self, name) for name in names}
        settings["linearization"] = self.linearization.to_dict()
        return write_model_directory(
            directory,
            model=self.model,
            source_tokenizer=self.source_tokenizer,
            target_tokenizer=None if is_shared else self.target_tokenizer,
            settings={"task": "parsing", "search": search_to_dict(self.search), **settings},
            recipe=self.recipe,
        )

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
        search = search or self.search
        todo = [index for index, of_sentence in enumerate(words) if of_sentence]
        num_words = [len(words[index]) for index in todo]
        limits = ops.convert_to_numpy(self.max_lengths(np.array(num_words, "int32"))).tolist()
        self._warn_of_long_sentences(num_words, limits)
        sources = self.source_tokenizer.encode_batch([" ".join(words[index]) for index in todo])
        sources = cut_sources(sources, self.max_source_length - 1, "; their trees have all words")
        answers, num_done = [[] for _ in words], len(words) - len(todo)
        for places, result in self._inference.search_batches(
            [[*ids, EOS_ID] for ids in sources],
            limits,
            search,
            batch_size,
            MAX_BATCH_TOKENS,
            num_streams,
            constraint_numbers=num_words if is_constrained else None,
        ):
            found = to_hypotheses(result, self.target_tokenizer)
            for place, hypotheses in zip(places, found, strict=True):
                index = todo[place]
                answers[index] = [self._to_parse(one, words[index]) for one in hypotheses]
            num_done += len(places)
            if progress is not None:
                progress(num_done, len(words))
        return answers

    def max_lengths(self, num_words):
        """Returns the most tokens each tree may have, EOS included.

        Args:
            num_words: int32 `[batch]`, the words of each sentence.

        Returns:
            int32 `[batch]`: `num_words + extra_length`, at most the model's `max_length`; 1 for a
            sentence without words.
        """
        return answer_limits(num_words, self.extra_length, self.model.config.max_length)

    def _well_formed_trees(self, num_words):
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
        num_long = sum(number > most for number, most in zip(num_words, room, strict=True))
        if num_long:
            message = "%d of %d sentences have more words than the model can write a tree of: %d."
            _LOGGER.warning(message, num_long, len(num_words), max(room))


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
