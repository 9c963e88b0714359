"""`ParsingTask`: parsing as a task of training, with F1 of brackets as its score."""

import collections
from typing import Any

from keras_transformer.data import SubwordTokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import Task
from keras_transformer.parsing.f1_on_dev import F1OnDev
from keras_transformer.parsing.linearization import NUMBERS, Linearization
from keras_transformer.parsing.parser import Parser
from keras_transformer.parsing.treebank import TreebankCorpus
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.score_on_dev import beam_search, fast_search
from keras_transformer.training.training_data import learn_vocabulary


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
            raise UserError(
                "The corpus of a parser must be a `TreebankCorpus`. Received: a corpus of type "
                f"{type(corpus).__name__}"
            )
        expected = Linearization.from_dict(settings.linearization)
        if corpus.linearization != expected:
            raise UserError(
                "The corpus must have the linearization of the settings. Received: "
                f"{corpus.linearization} with settings of {expected}"
            )

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
            tokenizers.source,
            tokenizers.target,
            corpus.linearization,
            search=fast_search(recipe, settings.f1_beam_size),
            every=settings.f1_every,
            limit=settings.f1_trees,
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile) -> Parser:
        return Parser(
            model,
            tokenizers.source,
            tokenizers.target,
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
