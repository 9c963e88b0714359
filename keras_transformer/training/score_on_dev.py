"""A score of whole answers on the validation set, as a callback."""

import abc
import textwrap

import keras

_NUM_SAMPLES, _SAMPLE_WIDTH = 2, 80


class ScoreOnDev(keras.callbacks.Callback, abc.ABC):
    """Scores the model's answers on the validation set at the end of epochs.

    A subclass says `name` (the score is logged as `val_<name>`), `label` and `answer_name` for
    people, and does `evaluate` and `samples`.

    Args:
        every: int, epochs between scores.

    Attributes:
        history: list of (epoch from 0, score).
        translator: `Translator` of the last evaluation, or None.

    Example:

    >>> from keras_transformer.parsing import F1OnDev
    >>> from keras_transformer.training import BleuOnDev, ScoreOnDev
    >>> [(kind.name, kind.label) for kind in (BleuOnDev, F1OnDev)]
    [('bleu', 'BLEU'), ('f1', 'F1')]
    >>> issubclass(F1OnDev, ScoreOnDev)
    True
    """

    name: str
    label: str
    answer_name: str

    def __init__(self, every: int = 1):
        super().__init__()
        self.every = every
        self.history: list[tuple[int, float]] = []
        self.translator = None

    @abc.abstractmethod
    def evaluate(self, model=None) -> float:
        """Scores the model's answers now.

        Args:
            model: `Transformer`; None for the one that is trained.

        Returns:
            The score, 0 to 100; higher is better.
        """

    @abc.abstractmethod
    def samples(self, number: int) -> list[tuple[str, str, str]]:
        """Returns the first sentences with the last answers and the references.

        Args:
            number: how many at most.
        """

    def sample_lines(self) -> list[str]:
        """Returns a few of the last answers with source and reference, each in a line."""
        return [
            "  {} -> {} (reference: {})".format(
                *(textwrap.shorten(part, _SAMPLE_WIDTH, placeholder="...") for part in sample)
            )
            for sample in self.samples(_NUM_SAMPLES)
        ]

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        score = self.evaluate()
        self.history.append((epoch, score))
        if logs is not None:
            logs[f"val_{self.name}"] = score

    def _scored_model(self, model):
        """The model to score: that given, or that trained."""
        return model or getattr(self.model, "transformer", self.model)  # Of a `LossModel`.
