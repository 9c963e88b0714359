"""Cross-entropy with label smoothing and R-Drop: the reference, on every backend.

The smoothed target is `1 - a` times the label plus `a` times the uniform distribution over all `V`
ids (see `uniform_share`). So the loss is `-(1 - a) * log p(label) - a * mean(log p)`, which needs
no `[..., V]` target.
"""

import keras
from keras import ops

from keras_transformer.layers.tensors import Tensor


def uniform_share(label_smoothing: float, num_classes: int, convention: str = "t2t") -> float:
    """Returns `a`, the share of the uniform distribution over all ids in the smoothed target."""
    if convention == "t2t" and num_classes > 1:
        return label_smoothing * num_classes / (num_classes - 1)
    return label_smoothing


def cross_entropy(labels: Tensor, logits: Tensor, smoothing: float = 0.0) -> Tensor:
    """Returns the cross-entropy of labels `[...]` and logits `[..., V]`, in at least float32.

    `smoothing` is `a` of `uniform_share`.
    """
    if keras.backend.backend() == "jax":
        # XLA makes two passes over the logits of this, and one of its gradient. A lookup of the
        # label would be a pass of its own, with a gradient as large as the logits.
        logits = logits - ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
        is_label = ops.equal(ops.arange(logits.shape[-1], dtype="int32"), labels[..., None])
        of_labels = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
        normalizer = ops.log(ops.sum(ops.exp(logits), axis=-1))
        return normalizer - (1.0 - smoothing) * of_labels - smoothing * ops.mean(logits, axis=-1)
    log_probabilities = ops.log_softmax(logits)
    of_labels = ops.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    return -(1.0 - smoothing) * of_labels - smoothing * ops.mean(log_probabilities, axis=-1)


def r_drop_cross_entropy(labels: Tensor, logits: Tensor, smoothing: float, alpha: float) -> Tensor:
    """Returns half of the loss of R-Drop (Liang et al., 2021, equation 4) for every token.

    It is the mean of the cross-entropies of two passes, `[tokens, 2, V]`, plus `alpha / 4` times
    the sum of the two KL divergences between their distributions.
    """
    entropies = cross_entropy(ops.stack([labels, labels], axis=1), logits, smoothing)
    log_probabilities = ops.log_softmax(logits)
    first, second = log_probabilities[:, 0], log_probabilities[:, 1]
    products = (ops.exp(first) - ops.exp(second)) * (first - second)
    return ops.mean(entropies, axis=1) + alpha / 4 * ops.sum(products, axis=-1)
