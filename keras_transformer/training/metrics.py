"""Loss, perplexity and accuracy per token of a validation set."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_argument
from keras_transformer.decoding.loop import top_k
from keras_transformer.decoding.search import CompiledFunctions
from keras_transformer.layers.tensors import (
    Tensor,
    at_least_float32,
    check_shape,
    check_weights,
)
from keras_transformer.losses.cross_entropy import cross_entropy, squeezed
from keras_transformer.losses.loss_model import LossModel
from keras_transformer.training.processes import ProcessGroup


class _TokenMean(keras.metrics.Mean):
    """Mean of a subclass's `token_values(labels, logits)` over the tokens that count."""

    default_name: str

    def __init__(self, name: str | None = None, dtype: Any = None):
        super().__init__(name=name or self.default_name, dtype=dtype)

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        check_shape("y_pred", y_pred, "[batch, length, V]")
        labels, sample_weight = ops.cast(squeezed(y_true, 2), "int32"), squeezed(sample_weight, 2)
        check_weights(sample_weight, labels)
        values = ops.cast(self.token_values(labels, ops.convert_to_tensor(y_pred)), self.dtype)
        weights = labels if sample_weight is None else ops.convert_to_tensor(sample_weight)
        is_counted = ops.broadcast_to(weights > 0, ops.shape(values))
        # Keras takes the mean of each row first, so that a token of a wide batch would count less.
        values, is_counted = (ops.reshape(array, (-1,)) for array in (values, is_counted))
        super().update_state(ops.where(is_counted, values, 0.0), ops.cast(is_counted, self.dtype))


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
        ValueError: If `y_pred` has no axis of logits.

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
        y_true, y_pred, sample_weight: As in `TokenLoss`.

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
        y_true, y_pred, sample_weight: As in `TokenLoss`.

    Example:

    >>> metric = keras_transformer.training.TokenAccuracy()
    >>> float(metric(np.array([[1, 2]]), np.array([[[0.0, 2.0, 0.0], [0.0, 2.0, 0.0]]])))
    0.5
    """

    default_name = "token_accuracy"

    @staticmethod
    def token_values(labels: Tensor, logits: Tensor) -> Tensor:
        # Keras' argmax takes many passes over the logits on TensorFlow.
        _, best = top_k(ops.reshape(logits, (-1, logits.shape[-1])), 1)
        return ops.equal(ops.reshape(best, ops.shape(labels)), labels)


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
        rule = "a model with logits; of a `LossModel`, give its `transformer`"
        check_argument(not isinstance(model, LossModel), "model", rule, model)
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
        logits = ops.cast(logits, at_least_float32(logits.dtype))
        labels, weights = ops.cast(squeezed(labels, 2), "int32"), squeezed(weights, 2)
        counted = ops.cast(weights > 0, logits.dtype)
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
