"""`ParsingTask`: parsing as a task of training, with `F1OnDev` as its score."""

import collections
import random
from collections.abc import Sequence
from typing import Any

from keras_transformer.data import SubwordTokenizer
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import GreedySearch
from keras_transformer.decoding.search import Search
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import Task
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer
from keras_transformer.parsing.evaluation.parseval import parseval
from keras_transformer.parsing.linearization import NUMBERS, Linearization
from keras_transformer.parsing.parser import Parser
from keras_transformer.parsing.treebank import TreebankCorpus
from keras_transformer.parsing.trees import Tree
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.score_on_dev import ScoreOnDev, beam_search, fast_search
from keras_transformer.training.training_data import learn_vocabulary


class F1OnDev(ScoreOnDev):
    """Parses the validation set at the end of epochs and logs its F1 as `val_f1`.

    The score is EVALB's labelled bracket F1 with the rules of `COLLINS.prm`, but over all
    sentences: a sentence that EVALB leaves out has no bracket right, so a model cannot win by
    failing on hard sentences.

    Args:
        trees: clean gold trees.
        source_tokenizer, target_tokenizer, linearization: as in `Parser`.
        search: a search of `keras_transformer.decoding`; None for greedy.
        every: number of epochs between parses.
        limit: number of trees to parse, drawn once, in their order; None for all.
        seed: seed of that choice.

    Attributes:
        history, translator: as in `ScoreOnDev`; the `Translator` writes symbols.
        trees: the gold trees that are parsed.
        parses: the last parses, `Tree` or None.
        score, parser: `ParsevalScore` and `Parser` of the last evaluation, or None.

    Raises:
        ValueError: if there are no trees.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.parsing import F1OnDev, Tree
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
        self.score = self.parser = None
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
        words = [tree.words() for tree in self.trees]
        self.parses = self.parser.parse(words, num_streams=self.num_streams)
        self.score = parseval(self.trees, self.parses)
        return self.score.strict_f1

    def samples(self, number: int) -> list[tuple[str, str, str]]:
        pairs = zip(self.trees[:number], self.parses[:number], strict=True)
        return [(" ".join(tree.words()), str(parse or ""), str(tree)) for tree, parse in pairs]


class ParsingTask(Task):
    """Sentences into trees, as `Task` describes it."""

    name, command, result_name = "parsing", "parse", "parser"
    score_name, score_label = "f1", "F1"
    pipeline = Parser
    own_settings = ("linearization",)
    served_functions = "keras_transformer.parsing.signatures.ParserFunctions"
    # A given tokenizer is for the words; the trees have a vocabulary of their own.
    shares_a_given_tokenizer = False
    # The search is constrained to well-formed trees.
    needs_own_search = True

    def check_settings(self, settings: TrainingSettings) -> dict[str, Any]:
        if settings.bpe_dropout:
            raise ValueError(
                "`bpe_dropout` is for translation. "
                f"Received: bpe_dropout={settings.bpe_dropout!r} with task={settings.task!r}"
            )
        linearization = Linearization.from_dict(settings.linearization)
        return {"linearization": linearization.to_dict(), "shared_vocabulary": False}

    def check(self, corpus: Any, settings: TrainingSettings) -> None:
        if not isinstance(corpus, TreebankCorpus):
            message = "The corpus of a parser must be a `TreebankCorpus`"
            raise UserError(f"{message}. Received: a corpus of type {type(corpus).__name__}")
        expected = Linearization.from_dict(settings.linearization)
        if corpus.linearization != expected:
            rule = "The corpus must have the linearization of the settings"
            raise UserError(f"{rule}. Received: {corpus.linearization} with settings of {expected}")

    def learn_tokenizers(self, corpus, settings, source, report) -> TokenizerPair:
        symbols = collections.Counter()

        def sentences():
            for sentence, tree in corpus:
                if not settings.linearization["words"]:
                    symbols.update(tree.split(" "))
                yield sentence

        if settings.linearization["numbers"]:
            symbols.update(NUMBERS)  # for sentences longer than those in training
        if source is None:
            size = "all" if settings.vocab_size is None else f"{settings.vocab_size:,}"
            report(f"Learning a vocabulary of {size} {settings.tokenizer} pieces for the words.")
            # Words that occur once become unknown, so that the model learns to read unknown words.
            source = learn_vocabulary(sentences(), settings, min_count=2)
        else:
            collections.deque(sentences(), maxlen=0)
        if settings.linearization["words"]:
            report("Learning a vocabulary of the same kind for the trees.")
            return TokenizerPair(source, learn_vocabulary((tree for _, tree in corpus), settings))
        report(f"The trees are written in {len(symbols)} symbols.")
        symbols = sorted(symbols, key=lambda symbol: (-symbols[symbol], symbol))
        return TokenizerPair(source, SubwordTokenizer(symbols))

    def make_score(self, corpus, tokenizers, settings, recipe) -> F1OnDev | None:
        if not settings.f1_every:
            return None
        return F1OnDev(
            list(corpus.trees()),
            *tokenizers,
            corpus.linearization,
            search=fast_search(recipe, settings.f1_beam_size),
            every=settings.f1_every,
            limit=settings.f1_trees,
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile) -> Parser:
        return Parser(
            model,
            *tokenizers,
            Linearization.from_dict(settings.linearization),
            search=beam_search(recipe, recipe.beam_size),
            recipe=recipe,
        )

    def check_served(self, pipeline: Parser) -> None:
        if not pipeline.constrained:
            why = "constrained=False"
            if pipeline.tree_symbols is None:
                why = f"linearization={pipeline.linearization}, and a target vocabulary in which "
                why += "not every symbol of a tree is one token"
            raise UserError(
                "A SavedModel does not repair trees, so its search must be constrained to "
                f"well-formed ones. Received: a Parser with {why}"
            )
