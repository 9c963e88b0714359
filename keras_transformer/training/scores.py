"""`ScoreOnDev`: scores of the answers to a validation set."""

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.errors import shortened
from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.training.processes import ProcessGroup

_NUM_SAMPLES = 2


def beam_search(
    recipe: TrainingRecipe, beam_size: int, constraints: Constraints = ()
) -> BeamSearch:
    """Returns a beam search with the length penalty of a recipe."""
    normalization = recipe.length_normalization
    return BeamSearch(
        beam_size,
        recipe.length_penalty,
        length_normalization=normalization,
        constraints=constraints,
    )


def fast_search(recipe: TrainingRecipe, beam_size: int) -> BeamSearch | GreedySearch:
    """Returns a greedy search for a beam of 1, otherwise the result of `beam_search`."""
    return GreedySearch() if beam_size == 1 else beam_search(recipe, beam_size)


class ScoreOnDev(keras.callbacks.Callback, abc.ABC):
    """Scores the model's answers on the validation set at the end of epochs.

    A subclass has a `name` (the score is logged as `val_<name>`), a `label` and an `answer_name` to
    print, and implements `evaluate` and `samples`. It may compute `figures` beside the score, whose
    names and labels are in `figure_labels`.

    Args:
        every: Epochs between scores.

    Attributes:
        history: List of (epoch from 0, score).
        pipeline: `Translator` or `Parser` of the last evaluation, or None.
        num_streams: Number of batches that are searched at the same time.
        group: `ProcessGroup` of the processes that share the answers.

    Example:

    >>> keras_transformer.training.BleuOnDev.mro()[1].__name__
    'ScoreOnDev'
    """

    name: str
    label: str
    answer_name: str
    figure_labels: ClassVar[Mapping[str, str]] = {}

    def __init__(self, every: int = 1):
        super().__init__()
        self.every = every
        self.history: list[tuple[int, float]] = []
        self.pipeline: Any = None
        self.num_streams = 1
        self.group = ProcessGroup()

    @abc.abstractmethod
    def evaluate(self, model: keras.Model | None = None) -> float:
        """Returns the score of the model's answers now, 0 to 100; higher is better.

        Args:
            model: `Transformer`; None for the one that is trained.
        """

    def figures(self) -> dict[str, float]:
        """Returns further figures of the last answers by name."""
        return {}

    @abc.abstractmethod
    def samples(self, number: int) -> list[tuple[str, str, str]]:
        """Returns the first sentences with the last answers and the references.

        Args:
            number: Maximum number of sentences.
        """

    def sample_lines(self) -> list[str]:
        """Returns lines for people, each with a source, the last answer and the reference."""
        samples = ([shortened(text, 80) for text in texts] for texts in self.samples(_NUM_SAMPLES))
        return ["  {} -> {} (reference: {})".format(*texts) for texts in samples]

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if (epoch + 1) % self.every:
            return
        score = self.evaluate()
        self.history.append((epoch, score))
        if logs is not None:
            logs[f"val_{self.name}"] = score

    def _scored_model(self, model):
        """Returns `model`, or the `Transformer` that is trained."""
        return model or getattr(self.model, "transformer", self.model)  # in a `LossModel`


class BleuOnDev(ScoreOnDev):
    """Translates the validation set at the end of epochs and logs its BLEU as `val_bleu`.

    Args:
        sources, references: Lists of `str` of the same length, raw text.
        source_tokenizer: Tokenizer of the sources.
        target_tokenizer: Tokenizer of the references; None if both share one.
        search: Search settings; None for greedy.
        every: Epochs between translations.
        lowercase: Whether BLEU ignores case.
        tokenize: sacreBLEU's tokenizer, such as "13a", "intl", "char" or "zh".

    Attributes:
        history: List of (epoch from 0, BLEU).
        pipeline: `Translator` of the last evaluation, or None.
        hypotheses: The last translations.

    Example:

    >>> tokenizer = keras_transformer.data.SubwordTokenizer(["a", "b"])
    >>> keras_transformer.training.BleuOnDev(["a b"], ["b a"], tokenizer).history
    []
    """

    name, label, answer_name = "bleu", "BLEU", "translation"
    figure_labels: ClassVar[Mapping[str, str]] = {"chrf": "chrF"}

    def __init__(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        search: Any = None,
        every: int = 1,
        lowercase: bool = False,
        tokenize: str = "13a",
    ):
        super().__init__(every)
        if len(sources) != len(references):
            rule = "`sources` and `references` must have the same number of lines"
            raise ValueError(f"{rule}. Received: {len(sources)} and {len(references)}")
        self.sources = list(sources)
        self.references = list(references)
        self.hypotheses: list[str] = []
        self._tokenizers = (source_tokenizer, target_tokenizer)
        self._search = search
        self._score_options = {"lowercase": lowercase, "tokenize": tokenize}

    def evaluate(self, model: keras.Model | None = None) -> float:
        from keras_transformer.evaluation import corpus_bleu
        from keras_transformer.inference.translator import Translator

        model = self._scored_model(model)
        # One translator for all calls: its search is compiled once.
        if self.pipeline is None or self.pipeline.model is not model:
            search = self._search or GreedySearch()
            self.pipeline = Translator(model, *self._tokenizers, search=search)
        translate = functools.partial(self.pipeline.translate, num_streams=self.num_streams)
        self.hypotheses = self.group.share(translate, self.sources)
        return corpus_bleu(self.hypotheses, self.references, **self._score_options).score

    def figures(self) -> dict[str, float]:
        from keras_transformer.evaluation import corpus_chrf

        lowercase = self._score_options["lowercase"]
        return {"chrf": corpus_chrf(self.hypotheses, self.references, lowercase).score}

    def samples(self, number: int) -> list[tuple[str, str, str]]:
        columns = (self.sources, self.hypotheses, self.references)
        return list(zip(*(column[:number] for column in columns), strict=True))
