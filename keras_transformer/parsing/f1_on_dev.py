"""F1 of constituents on the validation set."""

import random
from collections.abc import Sequence

from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.trees import Tree
from keras_transformer.training.score_on_dev import ScoreOnDev


class F1OnDev(ScoreOnDev):
    """Parses the validation set at the end of epochs and logs its F1 as `val_f1`.

    It is EVALB's labelled bracket F1 with the rules of `COLLINS.prm`, but of all sentences: one
    that EVALB leaves out has no bracket right. So a model does not win by failing on the hard ones.

    Args:
        trees: list of `Tree`, clean gold trees.
        source_tokenizer: tokenizer of the words.
        target_tokenizer: tokenizer of the trees.
        linearization: how trees are written; None for `Linearization()`.
        search: search settings; None for greedy.
        every: int, epochs between parses.
        limit: parse so many trees, drawn once, in their order; None for all.
        seed: of that draw.

    Attributes:
        history: list of (epoch from 0, F1).
        trees: the gold trees that are parsed.
        parses: the last parses, `Tree` or None.
        score: the last `ParsevalScore`, or None.
        parser: `Parser` of the last evaluation, or None.
        translator: `Translator` of the same model, which writes symbols; for attention maps.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import Tree
    >>> from keras_transformer.parsing import F1OnDev
    >>> tree = Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))")
    >>> symbols = SubwordTokenizer(["XX", "(S", "(NP", "(VP", ")S", ")NP", ")VP"])
    >>> callback = F1OnDev([tree], SubwordTokenizer(["It", "works"]), symbols)
    >>> callback.history
    []
    """

    name, label, answer_name = "f1", "F1", "parse"

    def __init__(
        self,
        trees: Sequence[Tree],
        source_tokenizer,
        target_tokenizer,
        linearization: Linearization | None = None,
        search=None,
        every: int = 1,
        limit: int | None = None,
        seed: int = 0,
    ):
        super().__init__(every)
        if not trees:
            raise ValueError("F1 needs trees. Received: none")
        self.trees = list(trees)
        if limit is not None and limit < len(self.trees):
            chosen = random.Random(seed).sample(range(len(self.trees)), limit)
            self.trees = [self.trees[number] for number in sorted(chosen)]
        self.parses: list[Tree | None] = []
        self.score = None
        self.parser = None
        self._tokenizers = (source_tokenizer, target_tokenizer)
        self._linearization = linearization or Linearization()
        self._search = search

    def evaluate(self, model=None) -> float:
        """Parses the validation set now.

        Args:
            model: `Transformer`; None for the one that is trained.

        Returns:
            F1, 0 to 100.
        """
        from keras_transformer.decoding import GreedySearch
        from keras_transformer.inference.translator import Translator
        from keras_transformer.parsing.evaluation.parseval import parseval
        from keras_transformer.parsing.parser import Parser

        model = self._scored_model(model)
        # One parser for all calls: its search is compiled once.
        if self.parser is None or self.parser.model is not model:
            search = self._search or GreedySearch()
            self.parser = Parser(model, *self._tokenizers, self._linearization, search=search)
            self.translator = Translator(model, *self._tokenizers, search=search)
        self.parses = self.parser.parse([tree.words() for tree in self.trees])
        self.score = parseval(self.trees, self.parses)
        return self.score.strict_f1

    def samples(self, number: int) -> list[tuple[str, str, str]]:
        """Returns the first sentences with their last parses and the gold trees.

        Args:
            number: how many at most.
        """
        pairs = list(zip(self.trees, self.parses, strict=True))[:number]
        return [
            (" ".join(tree.words()), "" if parse is None else str(parse), str(tree))
            for tree, parse in pairs
        ]
