"""A third task, of another package: a model writes the words of a sentence in reversed order."""

from keras_transformer.cli.translation import TranslationCommands
from keras_transformer.translation.task import TranslationTask


class ReversalTask(TranslationTask):
    """Sentences into reversed sentences, judged by the share without a mistake."""

    name = "reversal"
    commands = "tests.inference.toy_task:ReversalCommands"
    score_name, score_label = "exact", "exact match"

    @property
    def pipeline(self):
        from tests.inference.toy_pipeline import Reverser

        return Reverser

    def learn_tokenizers(self, corpus, settings, source, report):
        from keras_transformer.data import SubwordTokenizer
        from keras_transformer.data.tokenizer_pair import TokenizerPair

        words = {word for sentence, _ in corpus for word in sentence.split()}
        return TokenizerPair(SubwordTokenizer(sorted(words)))

    def make_score(self, corpus, tokenizers, settings, recipe):
        from tests.inference.toy_pipeline import ExactOnDev

        return ExactOnDev(list(corpus), tokenizers.source)


class ReversalCommands(TranslationCommands):
    """The data and the evaluation of `evaluate` are those of translation."""

    learns_from = "sentences and their reversals"
