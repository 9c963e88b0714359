"""Cross-entropy against a smoothed target, in NumPy float64, with the target written out.

Vaswani et al. (2017), section 5.4; Szegedy et al. (2016), section 7. Nothing of the package is
imported.
"""

import numpy as np


def soft_targets(labels, num_classes, smoothing, convention):
    """The target distributions `[..., num_classes]`.

    "t2t": 1 - e on the label and e / (V - 1) on every other id. "keras", as torch: a share e of the
    target is the uniform distribution over all ids, the label's included.
    """
    is_label = np.arange(num_classes) == np.asarray(labels)[..., None]
    if convention == "t2t":
        return np.where(is_label, 1 - smoothing, smoothing / (num_classes - 1))
    return (1 - smoothing) * is_label + smoothing / num_classes


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def smoothed_cross_entropy(labels, logits, smoothing=0.0, convention="t2t"):
    """`-sum_k target_k log p_k` of every position."""
    logits = np.asarray(logits, np.result_type(logits, float))
    target = soft_targets(labels, logits.shape[-1], smoothing, convention)
    return -(target * log_softmax(logits)).sum(axis=-1)


def smoothed_cross_entropy_gradient(labels, logits, smoothing=0.0, convention="t2t"):
    """Its gradient with respect to the logits of its own position, `p - target`."""
    logits = np.asarray(logits, "float64")
    target = soft_targets(labels, logits.shape[-1], smoothing, convention)
    return np.exp(log_softmax(logits)) - target


def r_drop(labels, first, second, smoothing, alpha):
    """Half of equation (4) of Liang et al. (2021), `(L_CE + alpha * L_KL) / 2`, by position."""
    entropies = [smoothed_cross_entropy(labels, logits, smoothing) for logits in (first, second)]
    log_p, log_q = log_softmax(first), log_softmax(second)
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    reverse = (np.exp(log_q) * (log_q - log_p)).sum(axis=-1)
    return (sum(entropies) + alpha * (divergence + reverse) / 2) / 2
