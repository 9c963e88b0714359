"""`ParsingTask`: sentences into trees, judged by F1, used by a `Parser`; its settings and data."""

import collections
import dataclasses
import functools
import os
import random
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from keras_transformer import parsing
from keras_transformer.checks import check_positive_integer
from keras_transformer.errors import UserError
from keras_transformer.files import require_file
from keras_transformer.inference.tasks import Task
from keras_transformer.parsing.linearization import NUMBERS, Linearization
from keras_transformer.parsing.trees import Tree, read_trees
from keras_transformer.settings.base import (
    MAY_CHANGE,
    Changes,
    Count,
    CountOrZero,
    Settings,
    settings_dataclass,
)


@settings_dataclass
class ParsingSettings(Settings):
    """The `task_settings` of `TrainingSettings` for parsing.

    Args:
        linearization: Changes to the default `Linearization`, by field.
        f1_every: Parse the validation trees at every Nth validation; 0 never does.
        f1_beam_size: Number of beams of these parses; 1 is greedy and fast.
        f1_trees: Parse N of the validation trees, drawn at random once; None for all of them.
    """

    linearization: Changes = Field(default_factory=dict)
    f1_every: Annotated[CountOrZero, MAY_CHANGE] = 1
    f1_beam_size: Annotated[Count, MAY_CHANGE] = 1
    f1_trees: Annotated[Count | None, MAY_CHANGE] = None

    def __post_init__(self):
        linearization = Linearization.from_dict(self.linearization)
        object.__setattr__(self, "linearization", linearization.to_dict())


class TreebankCorpus:
    """The trees of a file as pairs of text: words joined by spaces, and symbols joined by spaces.

    Args:
        path: Trees in brackets, which each iteration reads and cleans as `read_trees` does.
        linearization: Form of the trees as symbols; None for `Linearization()`.
        limit, seed: Number of trees to use, drawn at random, in the order of the file; None for
            all. A larger limit includes the trees of a smaller one.

    Raises:
        UserError: At once, if the file is missing or a pipe; while reading, as in `read_trees`.
        ValueError: If `limit` is not positive.

    Example:

    >>> from keras_transformer.parsing import Tree, TreebankCorpus, write_trees
    >>> write_trees("toy.trees", [Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))")])
    >>> corpus = TreebankCorpus("toy.trees")
    >>> list(corpus), len(corpus)
    ([('It works', '(S (NP XX )NP (VP XX )VP )S')], 1)
    """

    def __init__(
        self,
        path: str | os.PathLike,
        linearization: Linearization | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        check_positive_integer("limit", 1 if limit is None else limit)
        self.path = require_file(path, is_reread=True)
        self.linearization = linearization or Linearization()
        self.limit = limit
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for tree in self.trees():
            yield " ".join(tree.words()), " ".join(self.linearization.to_symbols(tree))

    def __len__(self) -> int:
        return len(self._unary_numbers) if self.limit is None else len(self._chosen)

    def max_unary(self) -> int:
        """Returns the largest `Tree.max_unary` in the file."""
        return max(self._unary_numbers)

    def trees(self) -> Iterator[Tree]:
        """Yields the clean trees of the pairs, in the same order."""
        for number, tree in enumerate(read_trees(self.path)):
            if self.limit is None or number in self._chosen:
                yield tree

    @functools.cached_property
    def _unary_numbers(self) -> list[int]:
        return [tree.max_unary() for tree in read_trees(self.path)]

    @functools.cached_property
    def _chosen(self) -> frozenset[int]:
        order = list(range(len(self._unary_numbers)))
        random.Random(self.seed).shuffle(order)
        return frozenset(order[: self.limit])


class ParsingTask(Task):
    """Sentences into trees, as `Task` describes it."""

    name, command = "parsing", "parse"
    commands = "keras_transformer.cli.parsing:ParsingCommands"
    settings = ParsingSettings
    score_name, score_label = "f1", "F1"
    # A given tokenizer is for the words; the trees have a vocabulary of their own.
    shares_a_given_tokenizer = False
    # The search is constrained to well-formed trees.
    needs_own_search = True

    @property
    def pipeline(self) -> type:
        return parsing.Parser

    @property
    def served_functions(self) -> type:
        from keras_transformer.parsing.signatures import ParserFunctions

        return ParserFunctions

    def check_settings(self, settings):
        if settings.bpe_dropout:
            received = f"bpe_dropout={settings.bpe_dropout!r} with task={settings.task!r}"
            raise ValueError(f"`bpe_dropout` is for translation. Received: {received}")
        return dataclasses.replace(super().check_settings(settings), shared_vocabulary=False)

    def check(self, corpus, settings) -> None:
        if not isinstance(corpus, TreebankCorpus):
            rule = "The corpus of a parser must be a `TreebankCorpus`"
            raise UserError(f"{rule}. Received: a corpus of type {type(corpus).__name__}")
        expected = _linearization(settings)
        if corpus.linearization != expected:
            rule = "The corpus must have the linearization of the settings"
            raise UserError(f"{rule}. Received: {corpus.linearization} with settings of {expected}")
        if corpus.max_unary() > expected.max_unary:
            rule = f"Trees may have {expected.max_unary} constituents in a row with a single part"
            received = f"{corpus.max_unary()} in {str(corpus.path)!r}"
            raise UserError(f"{rule} each; raise `max_unary`. Received: {received}")

    def learn_tokenizers(self, corpus, settings, source, report):
        from keras_transformer.data import SubwordTokenizer
        from keras_transformer.data.tokenizer_pair import TokenizerPair
        from keras_transformer.data.vocabularies import learn_vocabulary

        form = _linearization(settings)
        # All numbers, for sentences longer than those in training.
        symbols = collections.Counter(NUMBERS if form.numbers else ())

        def sentences():
            for sentence, tree in corpus:
                symbols.update(() if form.words else tree.split(" "))
                yield sentence

        if source is None:
            size = "all" if settings.vocab_size is None else f"{settings.vocab_size:,}"
            report(f"Learning a vocabulary of {size} {settings.tokenizer} pieces for the words.")
            # Words that occur once become unknown, so that the model learns to read unknown words.
            source = learn_vocabulary(sentences(), settings, min_count=2)
        else:
            collections.deque(sentences(), maxlen=0)
        if form.words:
            report("Learning a vocabulary of the same kind for the trees.")
            return TokenizerPair(source, learn_vocabulary((tree for _, tree in corpus), settings))
        report(f"The trees are written in {len(symbols)} symbols.")
        pieces = sorted(symbols, key=lambda symbol: (-symbols[symbol], symbol))
        return TokenizerPair(source, SubwordTokenizer(pieces))

    def make_score(self, corpus, tokenizers, settings, recipe):
        from keras_transformer.training.scores import fast_search

        task_settings = ParsingSettings.from_dict(settings.task_settings)
        if not task_settings.f1_every:
            return None
        return parsing.F1OnDev(
            list(corpus.trees()),
            *tokenizers,
            corpus.linearization,
            search=fast_search(recipe, task_settings.f1_beam_size),
            every=task_settings.f1_every,
            limit=task_settings.f1_trees,
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile, start_config=None):
        from keras_transformer.inference.model_directory import limits_of
        from keras_transformer.training.scores import beam_search

        options = {"search": beam_search(recipe, recipe.beam_size), "recipe": recipe}
        if start_config is not None:
            options |= limits_of(start_config)
        return self.pipeline(model, *tokenizers, _linearization(settings), **options)


def _linearization(settings):
    task_settings = ParsingSettings.from_dict(settings.task_settings)
    return Linearization.from_dict(task_settings.linearization)
