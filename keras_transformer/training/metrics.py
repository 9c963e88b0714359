"""Metrics per token: a token counts as one, whatever its sample weight."""

import keras
from keras import ops

from keras_transformer.layers.dtypes import at_least_float32
from keras_transformer.training.label_smoothing import closed_form


class _TokenMean(keras.metrics.Metric):
    """Sum of a value over the tokens with a positive weight, and the number of those tokens."""

    def __init__(self, name, dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = ops.cast(y_true, "int32")
        values = ops.cast(self.token_values(labels, ops.convert_to_tensor(y_pred)), self.dtype)
        if sample_weight is None:
            counted = ops.ones_like(values)
        else:
            positive = ops.convert_to_tensor(sample_weight) > 0
            counted = ops.cast(ops.broadcast_to(positive, ops.shape(values)), self.dtype)
        self.total.assign_add(ops.sum(ops.where(counted > 0, values, 0.0)))
        self.count.assign_add(ops.sum(counted))

    def token_values(self, labels, logits):
        raise NotImplementedError

    def result(self):
        return ops.divide_no_nan(self.total, self.count)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenLoss(_TokenMean):
    """Cross-entropy per token in nats, without label smoothing.

    The weights of `TokenBatches` sum to 1 over a batch, so a metric that averaged with them would
    be a mean of batch means. This one counts: sum over the tokens whose weight is above zero,
    divided by their number.

    Args:
        name: name of the metric.
        dtype: dtype of the sums.

    Call arguments:
        y_true: int `[batch, length]`.
        y_pred: float `[batch, length, V]`, logits.
        sample_weight: optional `[batch, length]`; a token counts if its weight is above 0.

    Returns:
        Scalar, 0 if no token was seen.

    Example:

    >>> import numpy as np
    >>> from keras_transformer.training import TokenLoss
    >>> metric = TokenLoss()
    >>> metric.update_state(np.array([[1, 0]]), np.zeros((1, 2, 4)), np.array([[0.3, 0.0]]))
    >>> round(float(metric.result()), 4)  # ln(4)
    1.3863
    """

    def __init__(self, name="token_loss", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def token_values(self, labels, logits):
        logits = ops.cast(logits, at_least_float32(logits.dtype))
        return closed_form(labels, logits, 0.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenLoss):
    """Exponential of the cross-entropy per token, without label smoothing, as it is reported.

    Args:
        name: name of the metric.
        dtype: dtype of the sums.

    Call arguments:
        y_true: int `[batch, length]`.
        y_pred: float `[batch, length, V]`, logits.
        sample_weight: optional `[batch, length]`; a token counts if its weight is above 0.

    Returns:
        Scalar.

    Example:

    >>> import numpy as np
    >>> from keras_transformer.training import Perplexity
    >>> metric = Perplexity()
    >>> metric.update_state(np.array([[1, 0]]), np.zeros((1, 2, 4)))
    >>> round(float(metric.result()), 4)
    4.0
    """

    def __init__(self, name="perplexity", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """Share of the tokens whose highest logit is the label's.

    Args:
        name: name of the metric.
        dtype: dtype of the sums.

    Call arguments:
        y_true: int `[batch, length]`.
        y_pred: float `[batch, length, V]`, logits.
        sample_weight: optional `[batch, length]`; a token counts if its weight is above 0.

    Returns:
        Scalar in [0, 1].

    Example:

    >>> import numpy as np
    >>> from keras_transformer.training import TokenAccuracy
    >>> metric = TokenAccuracy()
    >>> metric.update_state(np.array([[1, 0]]), np.array([[[0.0, 2.0], [0.0, 2.0]]]))
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name="token_accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def token_values(self, labels, logits):
        return ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels)
