"""Cross-entropy of integer labels and logits, with label smoothing: its value and its gradient.

The smoothed target has the share `a` (see `smoothing_weight`) of the uniform distribution over all
`V` ids. So the loss is `(1 - a) * nll + a * (logsumexp(logits) - mean(logits))` and its gradient is
`softmax(logits) - target`: no `[..., V]` target is built.
"""

import functools
from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def smoothing_weight(label_smoothing: float, num_classes: int, convention: str = "t2t") -> float:
    """Returns `a`, the share of the uniform distribution over all ids in the smoothed target."""
    if convention == "t2t" and num_classes > 1:
        return label_smoothing * num_classes / (num_classes - 1)
    return label_smoothing


def cross_entropy(labels: Tensor, logits: Tensor, weight: float = 0.0) -> Tensor:
    """Returns the cross-entropy of every position; the backend differentiates it."""
    # Where the largest logit is 0, no digits cancel.
    shifted = logits - ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    log_sum = ops.log(ops.sum(ops.exp(shifted), axis=-1))
    label_logits = ops.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]
    return log_sum - (1.0 - weight) * label_logits - weight * ops.mean(shifted, axis=-1)


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, weight: float) -> Tensor:
    """Returns what `cross_entropy` returns, on TensorFlow with a faster gradient of its own."""
    if keras.backend.backend() == "tensorflow":
        return _tensorflow_cross_entropy(labels, logits, weight)
    return cross_entropy(labels, logits, weight)


def r_drop_losses(labels: Tensor, logits: Tensor, weight: float, alpha: float) -> Tensor:
    """Returns half of the loss of R-Drop (Liang et al., 2021, equation 4) for every token.

    It is the mean of the cross-entropies of two passes, plus `alpha / 4` times the sum of the two
    divergences between their distributions.

    Args:
        labels: int32 `[tokens]`.
        logits: `[tokens, 2, V]`, of two passes with different dropout.
        weight: As of `cross_entropy`.
        alpha: Weight of the divergences.
    """
    entropies = smoothed_cross_entropy(ops.stack([labels, labels], axis=1), logits, weight)
    log_probabilities = ops.log_softmax(logits)
    first, second = log_probabilities[:, 0], log_probabilities[:, 1]
    products = (ops.exp(first) - ops.exp(second)) * (first - second)
    return ops.mean(entropies, axis=1) + alpha / 4 * ops.sum(products, axis=-1)


def losses_and_gradient(
    labels: Tensor, logits: Tensor, weight: Tensor, r_drop: float = 0.0
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Returns the losses of rows of logits, and a function that returns their gradients.

    Without XLA every operation is a pass over `[tokens, V]`, so one softmax serves both: 0.25 of
    the time of `cross_entropy` differentiated by TensorFlow, on two cores with 4,096 x 9,716.

    Args:
        labels: int32 `[tokens]`.
        logits: `[tokens, V]`; with `r_drop`, two rows for each label.
        weight: As of `cross_entropy`.
        r_drop: alpha of `r_drop_losses`; 0 for `cross_entropy`.
    """
    labels = tf.repeat(labels, 2) if r_drop else labels
    softmax = tf.nn.softmax(logits)
    # The largest probability is at least 1 / V: its logarithm is exact, whatever the logits, and
    # differences from the largest logit lose nothing where logits are large.
    log_sum = -tf.math.log(tf.reduce_max(softmax, axis=-1))
    largest = tf.reduce_max(logits, axis=-1)
    label_logits = tf.gather(logits, labels, batch_dims=1) - largest
    mean = tf.reduce_mean(logits, axis=-1) - largest
    losses = log_sum - (1.0 - weight) * label_logits - weight * mean
    if r_drop:
        log_sums = tf.reshape(log_sum + largest, [-1, 2])
        divergences, divergence_gradient = _divergences(*map(_pairs, (softmax, logits)), log_sums)
        losses = tf.reduce_mean(tf.reshape(losses, [-1, 2]), axis=1) + r_drop / 4 * divergences

    def gradient():
        places = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=-1)
        on_labels = tf.zeros_like(largest) + (weight - 1.0)
        gradients = tf.tensor_scatter_nd_add(softmax - weight / logits.shape[-1], places, on_labels)
        return gradients / 2 + r_drop / 4 * divergence_gradient() if r_drop else gradients

    return losses, gradient


def _divergences(probabilities, logits, log_sums):
    """Returns KL(p || q) + KL(q || p) of pairs `[tokens, 2, V]`, and their gradients, as rows."""
    p, q = probabilities[:, 0], probabilities[:, 1]
    ratio = logits[:, 0] - logits[:, 1] - tf.expand_dims(log_sums[:, 0] - log_sums[:, 1], 1)
    of_p, of_q = (tf.reduce_sum(one * ratio, axis=-1, keepdims=True) for one in (p, q))

    def gradient():
        gradients = p * (ratio - of_p) + (p - q), q * (of_q - ratio) + (q - p)
        return tf.reshape(tf.stack(gradients, axis=1), [-1, logits.shape[-1]])

    return tf.squeeze(of_p - of_q, 1), gradient


def _pairs(rows):
    return tf.reshape(rows, [-1, 2, rows.shape[-1]])


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
            return losses, lambda upstream: gradient() * tf.expand_dims(upstream, 1)

        return loss(logits)

    return row_losses
