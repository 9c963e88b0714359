"""The pipeline and the score of the task in `toy_task.py`."""

from keras_transformer.decoding import GreedySearch
from keras_transformer.inference import Translator
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
        self.pipeline = Reverser(self._scored_model(model), self.tokenizer, search=GreedySearch())
        self.answers = self.pipeline.translate([source for source, _ in self.pairs])
        right = [a == target for a, (_, target) in zip(self.answers, self.pairs, strict=True)]
        return 100.0 * sum(right) / len(right)

    def samples(self, number):
        return [(*pair, answer) for pair, answer in zip(self.pairs, self.answers, strict=True)]
