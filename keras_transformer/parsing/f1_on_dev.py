"""`F1OnDev`: a callback that scores the parses of the validation set."""

import random
from collections.abc import Sequence

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding import GreedySearch
from keras_transformer.decoding.search import Search
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.parser import Parser
from keras_transformer.parsing.parseval_score import ParsevalScore, parseval
from keras_transformer.parsing.trees import Tree
from keras_transformer.training.scores_on_dev import ScoreOnDev


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
        translator: `Translator` of the last evaluation, which writes symbols; or None.
        trees, parses: The gold trees that are parsed, and the last parses, `Tree` or None.
        score, parser: `ParsevalScore` and `Parser` of the last evaluation, or None.

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
        self.parser: Parser | None = None
        self._tokenizers = (source_tokenizer, target_tokenizer)
        self._linearization = linearization or Linearization()
        self._search = search

    def evaluate(self, model: Transformer | None = None) -> float:
        model = self._scored_model(model)
        # One parser for all calls: its search is compiled once.
        if self.parser is None or self.parser.model is not model:
            search = self._search or GreedySearch()
            self.parser = Parser(model, *self._tokenizers, self._linearization, search=search)
            self.translator = Translator(model, *self._tokenizers, search=search)
        parser = self.parser

        def parse_to_texts(words):  # Processes exchange text.
            trees = parser.parse(words, num_streams=self.num_streams)
            return [tree and str(tree) for tree in trees]

        texts = self.group.share(parse_to_texts, [tree.words() for tree in self.trees])
        self.parses = [text and Tree.parse(text) for text in texts]
        self.score = parseval(self.trees, self.parses)
        return self.score.strict_f1

    def samples(self, number: int) -> list[tuple[str, str, str]]:
        pairs = zip(self.trees[:number], self.parses[:number], strict=True)
        return [(" ".join(tree.words()), str(parse or ""), str(tree)) for tree, parse in pairs]
