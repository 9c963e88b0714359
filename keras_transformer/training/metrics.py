"""Figures of a validation set: loss and accuracy per token, and scores of the answers."""

import abc
import functools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.decoding.search import CompiledFunctions
from keras_transformer.layers.tensors import Tensor, at_least_float32, check_shape
from keras_transformer.losses.cross_entropy import cross_entropy
from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.training.distribution import ProcessGroup

_NUM_SAMPLES, _SAMPLE_WIDTH = 2, 80


class _TokenMean(keras.metrics.Mean):
    """Mean of a subclass's `token_values(labels, logits)` over the tokens that count."""

    default_name: str

    def __init__(self, name: str | None = None, dtype: Any = None):
        super().__init__(name=name or self.default_name, dtype=dtype)

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        check_shape("y_pred", y_pred, "[batch, length, V]")
        labels = ops.cast(y_true, "int32")
        values = ops.cast(self.token_values(labels, ops.convert_to_tensor(y_pred)), self.dtype)
        counts = labels if sample_weight is None else ops.convert_to_tensor(sample_weight)
        counts = ops.broadcast_to(counts > 0, ops.shape(values))
        # Keras takes the mean of each row first, so that a token of a wide batch would count less.
        values, counts = (ops.reshape(array, (-1,)) for array in (values, counts))
        super().update_state(ops.where(counts, values, 0.0), ops.cast(counts, self.dtype))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenLoss(_TokenMean):
    """Cross-entropy per token in nats, without label smoothing.

    This is a plain mean over the tokens whose weight is above zero. The weights of `TokenBatches`
    sum to 1 over a batch, so a weighted mean would be a mean of batch means.

    Args:
        name: Name of the metric; None for "token_loss".
        dtype: Dtype of the sums.

    Call arguments:
        y_true: int `[batch, length]`.
        y_pred: float `[batch, length, V]`, logits.
        sample_weight: Optional `[batch, length]`; a token counts if its weight is above 0, and
            without weights if it is not padding (id 0).

    Returns:
        Scalar, 0 if no token was seen.

    Raises:
        ValueError: If `y_pred` has no axis of logits, such as the output of a `LossModel`. For that
            model, use `evaluate_tokens` on its `transformer`.

    Example:

    >>> metric = keras_transformer.training.TokenLoss()
    >>> value = metric(np.array([[1, 0]]), np.zeros((1, 2, 4)), np.array([[0.3, 0.0]]))
    >>> round(float(value), 4)  # ln(4)
    1.3863
    """

    default_name = "token_loss"

    @staticmethod
    def token_values(labels: Tensor, logits: Tensor) -> Tensor:
        return cross_entropy(labels, ops.cast(logits, at_least_float32(logits.dtype)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenLoss):
    """Exponential of the cross-entropy per token, without label smoothing.

    Args:
        name: Name of the metric; None for "perplexity".
        dtype: Dtype of the sums.

    Call arguments:
        y_true: int `[batch, length]`.
        y_pred: float `[batch, length, V]`, logits.
        sample_weight: Optional `[batch, length]`; a token counts if its weight is above 0, and
            without weights if it is not padding (id 0).

    Example:

    >>> metric = keras_transformer.training.Perplexity()
    >>> round(float(metric(np.array([[1, 0]]), np.zeros((1, 2, 4)))), 4)
    4.0
    """

    default_name = "perplexity"

    def result(self) -> Tensor:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """Share of the tokens whose label has the highest logit.

    Args:
        name: Name of the metric; None for "token_accuracy".
        dtype: Dtype of the sums.

    Call arguments:
        y_true: int `[batch, length]`.
        y_pred: float `[batch, length, V]`, logits.
        sample_weight: Optional `[batch, length]`; a token counts if its weight is above 0, and
            without weights if it is not padding (id 0).

    Example:

    >>> metric = keras_transformer.training.TokenAccuracy()
    >>> float(metric(np.array([[1, 2]]), np.array([[[0.0, 2.0, 0.0], [0.0, 2.0, 0.0]]])))
    0.5
    """

    default_name = "token_accuracy"

    @staticmethod
    def token_values(labels: Tensor, logits: Tensor) -> Tensor:
        return ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels)


class TokenEvaluation(NamedTuple):
    """Figures per token of a data set.

    Attributes:
        loss, perplexity: Cross-entropy in nats, and its exponential.
        accuracy: Share of tokens to which the model gives the highest probability.
        num_tokens: Number of target tokens, padding not counted.

    Example:

    >>> keras_transformer.training.TokenEvaluation(1.0, 2.718, 0.7, num_tokens=900).perplexity
    2.718
    """

    loss: float
    perplexity: float
    accuracy: float
    num_tokens: int


class TokenEvaluator:
    """Evaluates one model on batches, without dropout or smoothing; compiles once for all calls.

    Args:
        model: `Transformer`.
        group: `ProcessGroup` of the processes that share the batches; None for this one alone.

    Example:

    >>> model = keras_transformer.models.Transformer.from_preset("tiny", vocab_size=100)
    >>> ids = np.ones((2, 4), "int32")
    >>> batch = ({"source": ids, "target": ids}, ids, np.full((2, 4), 1 / 8, "float32"))
    >>> keras_transformer.training.TokenEvaluator(model)([batch]).num_tokens
    8
    """

    def __init__(self, model: keras.Model, group: ProcessGroup | None = None):
        self.model = model
        self._group = group or ProcessGroup()
        self._compiled = CompiledFunctions(model)

    def __call__(self, batches: Iterable) -> TokenEvaluation:
        """Returns the figures of all batches together.

        Args:
            batches: Yields (inputs, labels, weights) as `TokenBatches` does.
        """
        if self._group.num_processes > 1:
            batches = list(batches)
            sums: Iterable = self._group.share(lambda share: [*map(self._figures, share)], batches)
        else:
            sums = map(self._figures, batches)
        totals = sum(map(np.array, sums), np.zeros(3))
        loss, accuracy = totals[:2] / max(totals[2], 1.0)
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return TokenEvaluation(float(loss), perplexity, float(accuracy), int(totals[2]))

    def _figures(self, batch):
        return [float(value) for value in self._compiled.get("sums", self._sums)(*batch)]

    def _sums(self, inputs, labels, weights):
        logits = self.model(inputs, training=False)
        labels = ops.cast(labels, "int32")
        counted = ops.cast(ops.convert_to_tensor(weights) > 0, logits.dtype)
        hits = ops.cast(TokenAccuracy.token_values(labels, logits), logits.dtype)
        losses = TokenLoss.token_values(labels, logits)
        return ops.sum(losses * counted), ops.sum(hits * counted), ops.sum(counted)


def evaluate_tokens(model: keras.Model, dataset: Iterable) -> TokenEvaluation:
    """Returns the figures of a model on a finite data set; to repeat it, use `TokenEvaluator`.

    Args:
        model: `Transformer`.
        dataset: Yields (inputs, labels, weights) as `TokenBatches` does.

    Example:

    >>> model = keras_transformer.models.Transformer.from_preset("tiny", vocab_size=100)
    >>> ids = np.ones((1, 2), "int32")
    >>> batch = ({"source": ids, "target": ids}, ids, np.ones((1, 2), "float32"))
    >>> keras_transformer.training.evaluate_tokens(model, [batch]).num_tokens
    2
    """
    return TokenEvaluator(model)(dataset)


def beam_search(recipe: TrainingRecipe, beam_size: int) -> BeamSearch:
    """Returns a beam search with the length penalty of a recipe."""
    normalization = recipe.length_normalization
    return BeamSearch(beam_size, recipe.length_penalty, length_normalization=normalization)


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
        shorten = functools.partial(textwrap.shorten, width=_SAMPLE_WIDTH, placeholder="...")
        samples = self.samples(_NUM_SAMPLES)
        return ["  {} -> {} (reference: {})".format(*map(shorten, sample)) for sample in samples]

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
