"""`ParsingTask`: sentences into trees, judged by F1, used by a `Parser`."""

import collections
import dataclasses

from keras_transformer import parsing
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import Task
from keras_transformer.parsing.settings import ParsingSettings


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
        if not isinstance(corpus, parsing.TreebankCorpus):
            rule = "The corpus of a parser must be a `TreebankCorpus`"
            raise UserError(f"{rule}. Received: a corpus of type {type(corpus).__name__}")
        expected = _linearization(settings)
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
        from keras_transformer.training.scores_on_dev import fast_search

        own = ParsingSettings.from_dict(settings.task_settings)
        if not own.f1_every:
            return None
        return parsing.F1OnDev(
            list(corpus.trees()),
            *tokenizers,
            corpus.linearization,
            search=fast_search(recipe, own.f1_beam_size),
            every=own.f1_every,
            limit=own.f1_trees,
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile):
        from keras_transformer.training.scores_on_dev import beam_search

        search = beam_search(recipe, recipe.beam_size)
        linearization = _linearization(settings)
        return self.pipeline(model, *tokenizers, linearization, search=search, recipe=recipe)


def _linearization(settings):
    own = ParsingSettings.from_dict(settings.task_settings)
    return parsing.Linearization.from_dict(own.linearization)
