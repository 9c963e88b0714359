"""What a model is trained for: what `train` does differently for translation and for parsing."""

import collections
import re

from keras_transformer.data import Linearization, SubwordTokenizer, TreebankCorpus
from keras_transformer.data.tree_linearization import NUMBERS
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.training.bleu_on_dev import BleuOnDev
from keras_transformer.training.f1_on_dev import F1OnDev
from keras_transformer.training.training_data import (
    Tokenizers,
    learn_vocabulary,
    make_tokenizers,
)

_JOIN = re.compile(r"@@( |\Z)")


class TranslationTask:
    """Sentences into sentences: judged by BLEU, used by a `Translator`."""

    score_name, score_label, result_name = "bleu", "BLEU", "translator"
    shares_a_given_tokenizer = True

    def check(self, corpus, settings) -> None:
        """Raises if BLEU cannot be measured as the settings say; any corpus of pairs will do."""
        if settings.bleu_every and settings.bleu_tokenize:
            from keras_transformer.evaluation.bleu import make_bleu

            make_bleu(settings.bleu_tokenize)

    def learn_tokenizers(self, corpus, settings, source, report) -> Tokenizers:
        """Learns the vocabularies from a corpus; `source` is None here."""
        return make_tokenizers(corpus, settings, report)

    def make_score(self, corpus, tokenizers: Tokenizers, settings, recipe):
        """Returns the `BleuOnDev` of a corpus, or None if the settings want none."""
        pairs = [(source, target) for source, target in corpus if source and target]
        if not settings.bleu_every or not pairs:
            return None
        is_subword = isinstance(tokenizers.of_target, SubwordTokenizer)
        return BleuOnDev(
            [source for source, _ in pairs],
            [_JOIN.sub("", target) if is_subword else target for _, target in pairs],
            tokenizers.source,
            tokenizers.target,
            search=_fast_search(recipe, settings.bleu_beam_size),
            every=settings.bleu_every,
            lowercase=settings.bleu_lowercase,
            tokenize=settings.bleu_tokenize or ("none" if is_subword else "13a"),
        )

    def make_result(self, model, tokenizers: Tokenizers, settings, recipe, sentence_profile):
        """Returns the `Translator` of a trained model."""
        from keras_transformer.translator import Translator

        return Translator(
            model,
            tokenizers.source,
            tokenizers.target,
            search=_beam_search(recipe, recipe.beam_size),
            recipe=recipe,
            sentence_profile=sentence_profile,
        )


class ParsingTask:
    """Sentences into trees: judged by F1 of brackets, used by a `Parser`."""

    score_name, score_label, result_name = "f1", "F1", "parser"
    # That of the words; the trees have a vocabulary of their own.
    shares_a_given_tokenizer = False

    def check(self, corpus, settings) -> None:
        """Raises if a corpus is no `TreebankCorpus` of the settings' linearisation."""
        if not isinstance(corpus, TreebankCorpus):
            raise UserError(
                "Parsing is learned from `TreebankCorpus`. Received: a corpus of type "
                f"{type(corpus).__name__}"
            )
        expected = Linearization.from_dict(settings.linearization)
        if corpus.linearization != expected:
            raise UserError(
                "The corpus must be written as the settings say. Received: "
                f"{corpus.linearization} with settings of {expected}"
            )

    def learn_tokenizers(self, corpus, settings, source, report) -> Tokenizers:
        """Learns the vocabulary of the words, unless it is given, and that of the trees."""
        symbols = collections.Counter()

        def sentences():
            for sentence, tree in corpus:
                if not settings.linearization["words"]:
                    symbols.update(tree.split(" "))
                yield sentence

        if settings.linearization["numbers"]:
            # Longer sentences than those of the training may come.
            symbols.update(NUMBERS)
        if source is None:
            size = "all" if settings.vocab_size is None else f"{settings.vocab_size:,}"
            report(f"Learning a vocabulary of {size} {settings.tokenizer} pieces for the words.")
            # A word that occurs once is unknown: otherwise no unknown word would be seen in
            # training.
            source = learn_vocabulary(sentences(), settings, min_count=2)
        else:
            collections.deque(sentences(), maxlen=0)
        if settings.linearization["words"]:
            report("Learning a vocabulary of the same kind for the trees.")
            return Tokenizers(source, learn_vocabulary((tree for _, tree in corpus), settings))
        report(f"The trees are written in {len(symbols)} symbols.")
        return Tokenizers(source, SubwordTokenizer([symbol for symbol, _ in _sorted(symbols)]))

    def make_score(self, corpus, tokenizers: Tokenizers, settings, recipe):
        """Returns the `F1OnDev` of a corpus, or None if the settings want none."""
        if not settings.f1_every:
            return None
        return F1OnDev(
            list(corpus.trees()),
            tokenizers.source,
            tokenizers.target,
            corpus.linearization,
            search=_fast_search(recipe, settings.f1_beam_size),
            every=settings.f1_every,
            limit=settings.f1_trees,
        )

    def make_result(self, model, tokenizers: Tokenizers, settings, recipe, sentence_profile):
        """Returns the `Parser` of a trained model."""
        from keras_transformer.parser import Parser

        return Parser(
            model,
            tokenizers.source,
            tokenizers.target,
            Linearization.from_dict(settings.linearization),
            search=_beam_search(recipe, recipe.beam_size),
            recipe=recipe,
        )


_TASKS = {"translation": TranslationTask(), "parsing": ParsingTask()}


def task_of(settings) -> TranslationTask | ParsingTask:
    """Returns the task that the settings name."""
    return _TASKS[settings.task]


def _beam_search(recipe, beam_size: int) -> BeamSearch:
    return BeamSearch(
        beam_size, recipe.length_penalty, length_normalization=recipe.length_normalization
    )


def _fast_search(recipe, beam_size: int) -> BeamSearch | GreedySearch:
    return GreedySearch() if beam_size == 1 else _beam_search(recipe, beam_size)


def _sorted(counts):
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
