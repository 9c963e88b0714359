"""`Parser`: a model, its tokenizers and a search, from sentences to trees; `F1OnDev` scores it."""

import logging
import random
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.checks import check_argument, check_boolean
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.decoding.search import Search
from keras_transformer.errors import UserError
from keras_transformer.inference.batch_inference import one_answer
from keras_transformer.inference.pipeline import Pipeline, Progress, cut_sources
from keras_transformer.layers.tensors import Tensor
from keras_transformer.models import Ensemble, TrainingRecipe, Transformer
from keras_transformer.parsing.joined_trees import JoinedTrees
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.parseval_score import ParsevalScore, parseval
from keras_transformer.parsing.trees import Tree, clean_tree, split_words
from keras_transformer.parsing.well_formed_trees import WellFormedTrees, tree_symbols
from keras_transformer.training.scores import ScoreOnDev

_LOGGER = logging.getLogger(__name__)
# Tokens of the smallest tree beyond its words: the two symbols of its root, and EOS.
_SMALLEST_TREE = 3


class Parse(NamedTuple):
    """A tree that a search found.

    Attributes:
        tree: A `Tree` over the words of the sentence.
        score: The log-probability, in a beam search divided by its length penalty.
        log_probability: Natural logarithm of the probability, with EOS.
        num_repairs: Number of repairs that the symbols needed, see `Linearization.rebuild`.

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

    A tree has exactly the words of its sentence: the search is constrained to such trees
    (`JoinedTrees` or `WellFormedTrees`) if possible, and other symbols are repaired
    (`Linearization.rebuild`).

    Args:
        model: A `Transformer` or `Ensemble`.
        source_tokenizer: Tokenizer of the words; round brackets are `(` and `)`, not `-LRB-`.
        target_tokenizer: Tokenizer of the symbols; None if both share one.
        linearization: Form of the trees; None for `Linearization()`.
        search: A search of `keras_transformer.decoding`; None for `BeamSearch(21, 0.3)`.
        extra_length: Maximum number of tokens of a tree, EOS counted, minus its words; at least 3.
        max_source_length: Maximum number of tokens of a source, with EOS, at most the model's
            `max_length`; None for 1024. Longer ones are cut with a warning; trees keep all words.
        recipe: A `TrainingRecipe` (or dict) that `save` writes as well.
        constrained: Whether searches are constrained to well-formed trees by default; None for True
            if each symbol is one token of a `SubwordTokenizer` and a leaf is one symbol.

    Attributes:
        tree_symbols: The `TreeSymbols` of the target's vocabulary; None if that is not possible.

    Raises:
        ValueError: If a tokenizer does not fit the model, a number is too small, or `constrained`
            is True where it is not possible.

    Example:

    >>> from keras_transformer import Parser, Transformer
    >>> from keras_transformer.data import SubwordTokenizer
    >>> source = SubwordTokenizer(["It", "works", "well"])
    >>> target = SubwordTokenizer(["(S", ")S", "(NP", ")NP", "(VP", ")VP", "XX"])
    >>> model = Transformer.from_preset("tiny", vocab_size=7, target_vocab_size=11)
    >>> parser = Parser(model, source, target)
    >>> parser.constrained, parser.parse(["It works"])[0].words()
    (True, ['It', 'works'])

    Reference: Vaswani et al. (2017), section 6.3; Vinyals et al. (2015), "Grammar as a Foreign
    Language".
    """

    task: ClassVar[str] = "parsing"
    settings: ClassVar = dict(Pipeline.settings, linearization=Linearization, constrained=None)
    common_settings: ClassVar[tuple[str, ...]] = ("linearization",)
    # Batches are counted with the maximum length of a tree; most trees are much shorter.
    max_batch_tokens: ClassVar[int] = 65_536

    def __init__(
        self,
        model: Transformer | Ensemble,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None,
        linearization: Linearization | None = None,
        search: Search | None = None,
        extra_length: int = 300,
        max_source_length: int | None = None,
        recipe: TrainingRecipe | dict | None = None,
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
        rule = f"at least {_SMALLEST_TREE}, the size of the smallest tree"
        check_argument(extra_length >= _SMALLEST_TREE, "extra_length", rule, extra_length)
        self.linearization = linearization or Linearization()
        self.tree_symbols: Any = None
        self._why_unconstrained = None
        try:
            self.tree_symbols = tree_symbols(self.target_tokenizer, self.linearization)
        except ValueError as error:
            self._why_unconstrained = str(error)
        self.constrained = self._check_constrained(constrained, self.tree_symbols is not None)

    def parse(
        self,
        sentences: Sequence[str | Sequence[str]],
        search: Search | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
        constrained: bool | None = None,
        num_streams: int = 1,
    ) -> list[Tree | None]:
        """Returns a `Tree` with exactly the words of each sentence; None for an empty sentence.

        Args:
            sentences: Sequence of sentences, each a `str` whose words are separated by spaces, tabs
                or line ends (not by U+00A0), or a sequence of words.
            search, batch_size, progress, num_streams: As in `Translator.translate`.
            constrained: As in `Parser`; None for the parser's default.

        Raises:
            ValueError: If `sentences` is a single string, a word is empty or contains white space,
                or `constrained` is True where it is not possible.
        """
        search = one_answer(search or self.search)
        answers = self.parses(sentences, search, batch_size, progress, constrained, num_streams)
        return [parses[0].tree if parses else None for parses in answers]

    def parses(
        self,
        sentences: Sequence[str | Sequence[str]],
        search: Search | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
        constrained: bool | None = None,
        num_streams: int = 1,
    ) -> list[list[Parse]]:
        """Returns all answers of the search: a list of `Parse` for every sentence, best first.

        A sentence without words has none. If the search finds nothing, because of constraints or
        too few learned positions, the answer is a tree without constituents and score -inf.

        Args:
            sentences, search, batch_size, progress, constrained, num_streams: As in `parse`, which
                raises the same errors.
        """
        words = _words_of(sentences)
        is_constrained = self._check_constrained(constrained, self.constrained)
        num_words = list(map(len, words))
        max_lengths = self.max_lengths if is_constrained else super().max_lengths
        limits = ops.convert_to_numpy(max_lengths(np.array(num_words, "int32"))).tolist()
        # A sentence without words has no tree, and a limit of 1.
        others = 1 if self.linearization.joined else _SMALLEST_TREE
        room = [max(limit - others, 0) for limit in limits]
        num_long = sum(number > limit for number, limit in zip(num_words, room, strict=True))
        if num_long:
            message = "%d of %d sentences have more words than a tree of the model can have: %d."
            _LOGGER.warning(message, num_long, sum(map(bool, num_words)), max(room))
        sources = self.source_tokenizer.encode_batch(list(map(" ".join, words)))
        sources = cut_sources(sources, self.max_source_length - 1, "; their trees have all words")
        answers = self._search_sources(
            [ids if number else None for ids, number in zip(sources, num_words, strict=True)],
            limits,
            search or self.search,
            batch_size,
            num_streams,
            progress,
            constraint_numbers=num_words if is_constrained else None,
        )
        return [
            [self._to_parse(hypothesis, sentence_words) for hypothesis in hypotheses or []]
            for hypotheses, sentence_words in zip(answers, words, strict=True)
        ]

    def max_lengths(self, num_tokens: Tensor) -> Tensor:
        limits = super().max_lengths(num_tokens)
        # With the constraint, a joined tree has one symbol for each word, and EOS.
        is_exact = self.linearization.joined and self.constrained
        return ops.minimum(limits, num_tokens + 1) if is_exact else limits

    def encode_pair(self, text: str, answer: str | None = None) -> tuple[list[int], list[int]]:
        text = " ".join(split_words(text))
        if answer is None:
            tree = self.parse([text])[0]
        else:
            given = Tree.parse(answer)
            tree = clean_tree(given) or given
        if tree and tree.words() != split_words(text):
            rule = f"The tree must have the words {text!r}"
            raise UserError(f"{rule}. Received: {' '.join(tree.words())!r}")
        symbols = self.linearization.to_symbols(tree) if tree else None
        return super().encode_pair(text, None if symbols is None else " ".join(symbols))

    def well_formed_trees(self, num_words: Tensor) -> WellFormedTrees | JoinedTrees:
        """Returns a constraint for searches: only trees over the words of each sentence.

        Args:
            num_words: int32 `[batch]`, the number of words of each sentence.
        """
        self._check_constrained(True, True)
        if self.linearization.joined:
            symbols = self.tree_symbols
            return JoinedTrees(num_words, symbols.openings, symbols.closings, symbols.words)
        max_unary = self.linearization.max_unary
        return WellFormedTrees(num_words, **self.tree_symbols._asdict(), max_unary=max_unary)

    def _to_parse(self, hypothesis, words):
        symbols = [symbol for symbol in hypothesis.text.split(" ") if symbol]
        tree, num_repairs = self.linearization.rebuild(symbols, words)
        return Parse(tree, hypothesis.score, hypothesis.log_probability, num_repairs)

    def _check_constrained(self, constrained, default):
        if constrained is None:
            return default
        if constrained and self._why_unconstrained is not None:
            rule = "The search cannot be constrained to well-formed trees: `constrained` must be"
            raise ValueError(f"{rule} False or None. {self._why_unconstrained}")
        check_boolean("constrained", constrained)
        return constrained


def _words_of(sentences):
    """Returns the words of each sentence; raises a `ValueError` if one is not a sentence."""
    if isinstance(sentences, str | bytes):
        rule = "`sentences` must be a list of sentences; put one sentence into a list"
        raise ValueError(f"{rule}. Received: {sentences=}")
    result = []
    for index, sentence in enumerate(sentences):
        words = split_words(sentence) if isinstance(sentence, str) else sentence
        is_list = isinstance(words, Sequence | np.ndarray) and not isinstance(words, bytes)
        if not is_list or not all(isinstance(w, str) and split_words(w) == [w] for w in words):
            rule = "A sentence must be a string, or a list of words without white space"
            raise ValueError(f"{rule}. Received: sentences[{index}]={sentence!r}")
        result.append(list(words))
    return result


class F1OnDev(ScoreOnDev):
    """Parses the validation set at the end of epochs and logs its F1 as `val_f1`.

    The score is `ParsevalScore.strict_f1`: a model cannot win by failing on hard sentences.

    Args:
        trees: Clean gold trees.
        source_tokenizer: Tokenizer of the words.
        target_tokenizer: Tokenizer of the symbols.
        linearization: Form of the trees; None for `Linearization()`.
        search: A search of `keras_transformer.decoding`; None for greedy.
        every: Number of epochs between parses.
        limit, seed: Number of trees to parse, drawn once, in their order; None for all.

    Attributes:
        history: List of (epoch from 0, F1).
        pipeline: `Parser` of the last evaluation, or None.
        trees, parses: The gold trees that are parsed, and the last parses, `Tree` or None.
        score: `ParsevalScore` of the last evaluation, or None.

    Raises:
        ValueError: If there are no trees.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import F1OnDev, Tree
    >>> tree = Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))")
    >>> symbols = SubwordTokenizer(["XX", "(S", "(NP", "(VP", ")S", ")NP", ")VP"])
    >>> F1OnDev([tree], SubwordTokenizer(["It", "works"]), symbols).history
    []
    """

    name, label, answer_name = "f1", "F1", "parse"

    def __init__(
        self,
        trees: Sequence[Tree],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        linearization: Linearization | None = None,
        search: Search | None = None,
        every: int = 1,
        limit: int | None = None,
        seed: int = 0,
    ):
        super().__init__(every)
        if not trees:
            raise ValueError("`trees` must have at least one tree. Received: trees=[]")
        self.trees = list(trees)
        if limit is not None and limit < len(self.trees):
            chosen = random.Random(seed).sample(range(len(self.trees)), limit)
            self.trees = [self.trees[number] for number in sorted(chosen)]
        self.parses: list[Tree | None] = []
        self.score: ParsevalScore | None = None
        self._tokenizers = (source_tokenizer, target_tokenizer)
        self._linearization = linearization or Linearization()
        self._search = search

    def evaluate(self, model: Transformer | None = None) -> float:
        model = self._scored_model(model)
        # One parser for all calls: its search is compiled once.
        if self.pipeline is None or self.pipeline.model is not model:
            search = self._search or GreedySearch()
            self.pipeline = Parser(model, *self._tokenizers, self._linearization, search=search)

        def parse_to_texts(words):  # Processes exchange text.
            trees = self.pipeline.parse(words, num_streams=self.num_streams)
            return [tree and str(tree) for tree in trees]

        texts = self.group.share(parse_to_texts, [tree.words() for tree in self.trees])
        self.parses = [text and Tree.parse(text) for text in texts]
        self.score = parseval(self.trees, self.parses)
        return self.score.strict_f1

    def samples(self, number: int) -> list[tuple[str, str, str]]:
        pairs = zip(self.trees[:number], self.parses[:number], strict=True)
        return [(" ".join(tree.words()), str(parse or ""), str(tree)) for tree, parse in pairs]
