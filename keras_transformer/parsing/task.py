"""`ParsingTask`: sentences into trees, judged by F1, used by a `Parser`."""

import argparse
import collections
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer import parsing
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import Corpora, Task, toml_files
from keras_transformer.settings.setting import declare_options

_OPTIONS = {
    "trees FILE": "training trees in brackets, in the style of the Penn Treebank, .gz too",
    "valid_trees FILE": "trees to choose and watch the model by; never the test set",
    "limit_trees N": "train on N of the trees, drawn at random; a larger N includes the trees of a "
    "smaller one; None for all",
    "emit_words": "the model writes the words in trees",
    "emit_tags": "the model writes the tags of words in trees",
    "emit_numbers": "the model writes a number for each word in trees; without words, tags and "
    "numbers it writes XX for each, as in the paper; None for true, unless it writes words or tags",
    "max_unary N": "maximum number of constituents in a row that have a single part each; None for "
    f"{parsing.Linearization.max_unary}",
    "unlabelled_closing": "the model writes closing brackets without labels",
}
# Approximate number of opening and closing symbols, as in treebanks of English.
_NUM_SYMBOLS = 64


class ParsingTask(Task):
    """Sentences into trees, as `Task` describes it."""

    name, command = "parsing", "parse"
    score_name, score_label = "f1", "F1"
    settings = ("linearization", "f1_every", "f1_beam_size", "f1_trees")
    # A given tokenizer is for the words; the trees have a vocabulary of their own.
    shares_a_given_tokenizer = False
    # The search is constrained to well-formed trees.
    needs_own_search = True

    learns_from = "trees"
    missing_data = "--task parsing needs --trees FILE and --valid-trees FILE."
    commands = {"parse": "keras_transformer.parsing.commands"}
    options = declare_options("parsing", _OPTIONS)
    tables = {"parsing": "trees, for --task parsing"}
    defaults = {"preset": "parsing_small", "shared_vocabulary": False}
    data_kinds = {"trees": ("trees", "valid_trees")}
    model_options = ("--unconstrained",)
    evaluate_inputs = ("parameters",)
    valid_files = {"--reference": "valid_trees"}
    evaluate_outputs = ("table",)

    @property
    def pipeline(self) -> type:
        return parsing.Parser

    @property
    def served_functions(self) -> type:
        from keras_transformer.parsing.signatures import ParserFunctions

        return ParserFunctions

    @property
    def experiments(self) -> dict[str, pathlib.Path]:
        return toml_files(pathlib.Path(__file__).with_name("experiments"))

    def check_settings(self, settings) -> dict[str, Any]:
        if settings.bpe_dropout:
            received = f"bpe_dropout={settings.bpe_dropout!r} with task={settings.task!r}"
            raise ValueError(f"`bpe_dropout` is for translation. Received: {received}")
        linearization = parsing.Linearization.from_dict(settings.linearization)
        return {"linearization": linearization.to_dict(), "shared_vocabulary": False}

    def check(self, corpus, settings) -> None:
        if not isinstance(corpus, parsing.TreebankCorpus):
            rule = "The corpus of a parser must be a `TreebankCorpus`"
            raise UserError(f"{rule}. Received: a corpus of type {type(corpus).__name__}")
        expected = parsing.Linearization.from_dict(settings.linearization)
        if corpus.linearization != expected:
            rule = "The corpus must have the linearization of the settings"
            raise UserError(f"{rule}. Received: {corpus.linearization} with settings of {expected}")
        if corpus.max_unary() > expected.max_unary:
            rule = f"Trees may have {expected.max_unary} constituents in a row with a single part"
            received = f"{corpus.max_unary()} in {str(corpus.path)!r}"
            raise UserError(f"{rule} each; raise `max_unary` (--max-unary). Received: {received}")

    def learn_tokenizers(self, corpus, settings, source, report):
        from keras_transformer.data import SubwordTokenizer
        from keras_transformer.data.tokenizer_pair import TokenizerPair
        from keras_transformer.data.vocabularies import learn_vocabulary
        from keras_transformer.parsing.linearization import NUMBERS

        form = parsing.Linearization.from_dict(settings.linearization)
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
        from keras_transformer.training.scores_on_dev import fast_search

        if not settings.f1_every:
            return None
        return parsing.F1OnDev(
            list(corpus.trees()),
            *tokenizers,
            corpus.linearization,
            search=fast_search(recipe, settings.f1_beam_size),
            every=settings.f1_every,
            limit=settings.f1_trees,
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile):
        from keras_transformer.training.scores_on_dev import beam_search

        search = beam_search(recipe, recipe.beam_size)
        linearization = parsing.Linearization.from_dict(settings.linearization)
        return self.pipeline(model, *tokenizers, linearization, search=search, recipe=recipe)

    def check_served(self, pipeline) -> None:
        if not pipeline.constrained:
            why = "constrained=False"
            if pipeline.tree_symbols is None:
                why = f"linearization={pipeline.linearization}, and a target vocabulary in which "
                why += "not every symbol of a tree is one token"
            rule = "A SavedModel does not repair trees, so its search must be constrained to "
            raise UserError(f"{rule}well-formed ones. Received: a Parser with {why}")

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        linearization = parsing.Linearization(**_linearization(values))
        corpora = (
            parsing.TreebankCorpus(values["trees"], linearization, limit=values["limit_trees"]),
            parsing.TreebankCorpus(values["valid_trees"], linearization),
        )
        for corpus in corpora:
            len(corpus)  # reads all trees, and raises if one is broken
        return Corpora(*corpora)

    def describe_data(self, values: Mapping[str, Any]) -> str:
        return values["trees"] or ""

    def training_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"linearization": _linearization(values)}

    def plan_vocabulary(self, settings, size: int, vocabulary: Any) -> tuple[int | None, str]:
        if settings.linearization["words"]:
            return size, "for the words, as many for the trees"
        from keras_transformer.parsing.linearization import NUMBERS

        num_symbols = _NUM_SYMBOLS + len(NUMBERS) * settings.linearization["numbers"]
        return num_symbols, f"for the words, about {num_symbols} symbols for the trees"

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        from keras_transformer.parsing.commands import define_evaluate_options

        define_evaluate_options(parser)

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        from keras_transformer.parsing.commands import evaluate

        return evaluate(arguments)


def _linearization(values):
    words, tags, numbers = (values[f"emit_{name}"] for name in ("words", "tags", "numbers"))
    numbers = not (words or tags) if numbers is None else numbers
    has_labels, limit = not values["unlabelled_closing"], values["max_unary"]
    form = {"words": words, "tags": tags, "numbers": numbers, "labelled_closing": has_labels}
    return form if limit is None else {**form, "max_unary": limit}
