"""A third task: a model writes the words of a sentence in reversed order."""

from keras_transformer.data import SubwordTokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import GreedySearch
from keras_transformer.inference.pipeline import Pipeline
from keras_transformer.inference.tasks import Task
from keras_transformer.inference.translator import Translator
from keras_transformer.training import ScoreOnDev


class Reverser(Translator):
    """A `Translator` of another name; its files say so."""

    task = "reversal"


class ExactOnDev(ScoreOnDev):
    """The share of sentences that are reversed without a mistake."""

    name, label, answer_name = "exact", "exact match", "reversal"

    def __init__(self, pairs, tokenizer):
        super().__init__()
        self.pairs, self.tokenizer, self.answers = pairs, tokenizer, []

    def evaluate(self, model=None):
        self.translator = Reverser(self._scored_model(model), self.tokenizer, search=GreedySearch())
        self.answers = self.translator.translate([source for source, _ in self.pairs])
        right = [a == target for a, (_, target) in zip(self.answers, self.pairs, strict=True)]
        return 100.0 * sum(right) / len(right)

    def samples(self, number):
        return [(*pair, answer) for pair, answer in zip(self.pairs, self.answers, strict=True)]


class ReversalTask(Task):
    name, command = "reversal", "translate"
    score_name, score_label, result_name = "exact", "exact match", "reverser"
    pipeline: type[Pipeline] = Reverser
    served_functions = "keras_transformer.export.signatures.TranslatorFunctions"

    def check(self, corpus, settings):
        for source, target in corpus:
            assert target.split() == source.split()[::-1]

    def learn_tokenizers(self, corpus, settings, source, report):
        words = {word for sentence, _ in corpus for word in sentence.split()}
        return TokenizerPair(SubwordTokenizer(sorted(words)))

    def make_score(self, corpus, tokenizers, settings, recipe):
        return ExactOnDev(list(corpus), tokenizers.source)

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile):
        return Reverser(model, tokenizers.source, search=GreedySearch(), recipe=recipe)
