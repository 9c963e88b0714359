"""Cross-entropy of integer labels and logits, with label smoothing, on every backend.

The smoothed target is `1 - a` times the label plus `a` times the uniform distribution over all `V`
ids (see `smoothing_weight`). So the loss is `-(1 - a) * log p(label) - a * mean(log p)`, which
needs no `[..., V]` target. `training/projected_cross_entropy.py` computes the same on TensorFlow,
in fewer passes over the logits.
"""

from keras import ops

from keras_transformer.layers.dtypes import Tensor


def smoothing_weight(label_smoothing: float, num_classes: int, convention: str = "t2t") -> float:
    """Returns `a`, the share of the uniform distribution over all ids in the smoothed target."""
    if convention == "t2t" and num_classes > 1:
        return label_smoothing * num_classes / (num_classes - 1)
    return label_smoothing


def cross_entropy(labels: Tensor, logits: Tensor, weight: float = 0.0) -> Tensor:
    """Returns the cross-entropy of every position, `[...]`.

    Args:
        labels: int32 `[...]`.
        logits: `[..., V]`, in at least float32.
        weight: `a` of `smoothing_weight`.
    """
    log_probabilities = ops.log_softmax(logits)
    of_labels = ops.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    return -(1.0 - weight) * of_labels - weight * ops.mean(log_probabilities, axis=-1)


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
    entropies = cross_entropy(ops.stack([labels, labels], axis=1), logits, weight)
    log_probabilities = ops.log_softmax(logits)
    first, second = log_probabilities[:, 0], log_probabilities[:, 1]
    products = (ops.exp(first) - ops.exp(second)) * (first - second)
    return ops.mean(entropies, axis=1) + alpha / 4 * ops.sum(products, axis=-1)
