"""Cross-entropy of integer labels and logits, with label smoothing: its value and its gradient.

The smoothed target is `1 - a` times the label plus `a` times the uniform distribution over all `V`
ids (see `smoothing_weight`). So the loss is `(1 - a) * nll + a * (logsumexp(logits) -
mean(logits))` and its gradient `softmax(logits) - target`: neither needs a `[..., V]` target.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# A smaller probability has lost digits in float32.
_SMALLEST_EXACT = 1e-30


def smoothing_weight(label_smoothing: float, num_classes: int, convention: str = "t2t") -> float:
    """Returns `a`, the share of the uniform distribution over all ids in the smoothed target."""
    if convention == "t2t" and num_classes > 1:
        return label_smoothing * num_classes / (num_classes - 1)
    return label_smoothing


def cross_entropy(labels: Tensor, logits: Tensor, weight: float = 0.0) -> Tensor:
    """Returns the cross-entropy of every position; the backend differentiates it."""
    # The largest logit becomes 0, so that no digits cancel. Without `initial`, Keras refuses to
    # compute the maximum of no rows.
    largest = ops.max(logits, axis=-1, keepdims=True, initial=-math.inf)
    shifted = logits - ops.stop_gradient(largest)
    log_sum = ops.log(ops.sum(ops.exp(shifted), axis=-1))
    label_logits = ops.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]
    return log_sum - (1.0 - weight) * label_logits - weight * ops.mean(shifted, axis=-1)


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, weight: float) -> Tensor:
    """As `cross_entropy`, but with a faster custom gradient on TensorFlow."""
    if keras.backend.backend() == "tensorflow":
        return _tensorflow_cross_entropy(labels, logits, weight)
    return cross_entropy(labels, logits, weight)


def r_drop_losses(labels: Tensor, logits: Tensor, weight: float, alpha: float) -> Tensor:
    """Returns half of the loss of R-Drop (Liang et al., 2021, equation 4) for every token.

    It is the mean of the cross-entropies of two passes, plus `alpha / 4` times the sum of the two
    KL divergences between their distributions.

    Args:
        labels: int32 `[tokens]`.
        logits: `[tokens, 2, V]`, of two passes with different dropout.
        weight: As in `cross_entropy`.
        alpha: Weight of the divergences.
    """
    entropies = smoothed_cross_entropy(ops.stack([labels, labels], axis=1), logits, weight)
    log_probabilities = ops.log_softmax(logits)
    first, second = log_probabilities[:, 0], log_probabilities[:, 1]
    products = (ops.exp(first) - ops.exp(second)) * (first - second)
    return ops.mean(entropies, axis=1) + alpha / 4 * ops.sum(products, axis=-1)


class Gradient(NamedTuple):
    """The gradient of losses with respect to logits, in parts that are cheap to multiply.

    It is `rows`, plus `at_labels` at the label of each row, plus `everywhere` for all logits.
    """

    rows: Tensor  # [rows, V]
    at_labels: Tensor  # [rows]
    everywhere: Tensor  # []


def losses_and_gradient(
    labels: Tensor, logits: Tensor, weight: Tensor, r_drop: float = 0.0, mean: Tensor | None = None
) -> tuple[Tensor, Callable[[], Gradient]]:
    """Returns the losses of rows of logits, and a function that returns their `Gradient`.

    Without XLA every operation is a pass over `[rows, V]`, so both share one softmax.

    Args:
        labels: int32 `[rows]`; with `r_drop`, both rows of a token have its label.
        logits: `[rows, V]`.
        weight: As in `cross_entropy`.
        r_drop: alpha of `r_drop_losses`, for pairs of rows; 0 for `cross_entropy`.
        mean: `[rows]`, the means of the logits, if they are known.
    """
    softmax = tf.nn.softmax(logits)
    label_logits = tf.gather(logits, labels, batch_dims=1)
    mean = tf.reduce_mean(logits, axis=-1) if mean is None else mean
    label_softmax = tf.gather(softmax, labels, batch_dims=1)
    # Differences of logits lose no digits, even where logits are large.
    losses = tf.cond(
        tf.reduce_all(label_softmax > _SMALLEST_EXACT),
        lambda: -tf.math.log(label_softmax),
        # The largest probability is at least 1 / V: its logarithm is exact, whatever the logits.
        lambda: (
            (tf.reduce_max(logits, axis=-1) - label_logits)
            - tf.math.log(tf.reduce_max(softmax, axis=-1))
        ),
    )
    losses += weight * (label_logits - mean)
    at_labels, everywhere = tf.fill(tf.shape(labels), weight - 1.0), -weight / logits.shape[-1]
    if not r_drop:
        return losses, lambda: Gradient(softmax, at_labels, everywhere)
    divergences, rows = _divergences(softmax, logits, 2 / r_drop)
    losses = tf.reduce_mean(tf.reshape(losses, [-1, 2]), axis=1) + r_drop / 4 * divergences
    return losses, lambda: Gradient(r_drop / 4 * rows(), at_labels / 2, everywhere / 2)


def _divergences(softmax, logits, share):
    """Returns the sum of the two KL divergences of each pair of rows, and a function.

    The function returns `[rows, V]`: gradients of the sums by the logits, plus `share` * softmax.
    """
    p, q = tf.unstack(tf.reshape(softmax, [-1, 2, softmax.shape[-1]]), axis=1)
    first, second = tf.unstack(tf.reshape(logits, [-1, 2, logits.shape[-1]]), axis=1)
    difference = first - second
    # KL(p || q) + KL(q || p) = sum((p - q) * difference): the normalisers cancel.
    of_p, of_q = (tf.reduce_sum(one * difference, axis=-1, keepdims=True) for one in (p, q))

    def rows():
        by_first = p * (difference + (share + 1 - of_p)) - q
        by_second = q * ((share + 1 + of_q) - difference) - p
        return tf.reshape(tf.stack([by_first, by_second], axis=1), tf.shape(softmax))

    return tf.squeeze(of_p - of_q, 1), rows


def _tensorflow_cross_entropy(labels, logits, weight):
    logits, labels = tf.convert_to_tensor(logits), tf.convert_to_tensor(labels)
    num_classes = logits.shape[-1]
    losses = _row_losses(num_classes, logits.dtype.name)(
        tf.reshape(labels, [-1]), tf.reshape(logits, [-1, num_classes]), weight
    )
    losses = tf.reshape(losses, tf.shape(labels))
    losses.set_shape(labels.shape)
    return losses


@functools.cache
def _row_losses(num_classes, dtype):
    """Returns a TensorFlow function of labels, rows of logits and `weight`, for all models.

    TensorFlow keeps every custom gradient forever, together with the graph it was made in.
    """
    rows, weight = tf.TensorSpec([None, num_classes], dtype), tf.TensorSpec([], dtype)

    @tf.function(input_signature=[tf.TensorSpec([None], "int32"), rows, weight])
    def row_losses(labels, logits, weight):
        @tf.custom_gradient
        def loss(logits):
            losses, gradient = losses_and_gradient(labels, logits, weight)

            def logits_gradient(upstream):
                rows, at_labels, everywhere = gradient()
                places = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=-1)
                rows = tf.tensor_scatter_nd_add(rows + everywhere, places, at_labels)
                return rows * tf.expand_dims(upstream, 1)

            return losses, logits_gradient

        return loss(logits)

    return row_losses
