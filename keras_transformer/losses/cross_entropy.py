"""The paper's loss, and R-Drop: the reference on every backend, and the Keras loss of logits.

The smoothed target is `1 - a` times the label plus `a` times the uniform distribution over all `V`
ids (see `uniform_share`). So the loss is `-(1 - a) * log p(label) - a * mean(log p)`, which needs
no `[..., V]` target.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_choice, check_rate
from keras_transformer.layers.tensors import (
    Tensor,
    at_least_float32,
    check_shape,
    check_weights,
)
from keras_transformer.models.micro_batches import token_mean_weights

if keras.backend.backend() == "tensorflow":
    from keras_transformer.losses.fused_cross_entropy import fused_cross_entropy


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
        losses = normalizer - (1.0 - smoothing) * of_labels
        # A logit may be minus infinity, and 0 * infinity is no number.
        return losses - smoothing * ops.mean(logits, axis=-1) if smoothing else losses
    log_probabilities = ops.log_softmax(logits)
    of_labels = ops.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    losses = -(1.0 - smoothing) * of_labels
    return losses - smoothing * ops.mean(log_probabilities, axis=-1) if smoothing else losses


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


def squeezed(array: Any, rank: int) -> Any:
    """Returns a tensor without a last axis of 1 beyond `rank`, as Keras' sparse losses do."""
    if array is None:
        return None
    array = ops.convert_to_tensor(array)
    has_more = len(array.shape) == rank + 1 and array.shape[-1] == 1
    return ops.squeeze(array, axis=-1) if has_more else array


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy of integer labels against a smoothed target, from logits.

    With `e` the smoothing and `V` the number of ids, the target is a distribution:

    - `convention="t2t"`: `1 - e` on the label and `e / (V - 1)` on every other id, padding
      included, as in tensor2tensor, the paper's own code (the default);
    - `convention="keras"`: `1 - e + e / V` on the label and `e / V` on the others, as in
      `keras.losses.CategoricalCrossentropy` and `torch.nn.CrossEntropyLoss`.

    Neither target is built: value and gradient are computed in closed form. Differs from Keras: the
    default reduction is "sum". Without weights it is the mean over the tokens that are not padding
    (id 0), on each replica. With the weights of `TokenBatches`, which are 0 on padding (mask /
    number of tokens in the global batch), it is the exact mean on any number of replicas.

    Args:
        label_smoothing: float `e` in [0, 1).
        convention: "t2t" or "keras".
        reduction, name, dtype: As in `keras.losses.Loss`, but at least float32; float64 logits are
            never cast down.

    Call arguments:
        y_true: int `[batch, length]`, ids in `[0, V)`.
        y_pred: float `[batch, length, V]`, logits; half precisions are raised to float32.
        sample_weight: float `[batch, length]`, such as the weights of `TokenBatches`; None for the
            mean over the tokens that are not padding.

    Returns:
        Scalar, or `[batch, length]` with `reduction="none"`.

    Raises:
        ValueError: If the smoothing is outside [0, 1) or the convention is unknown.

    Example:

    >>> loss = keras_transformer.training.LabelSmoothedCrossEntropy(0.1)
    >>> value = loss(np.array([[1, 2]]), np.zeros((1, 2, 5), "float32"), np.array([[0.5, 0.5]]))
    >>> round(float(value), 4)  # ln(5)
    1.6094

    Reference: Vaswani et al. (2017), section 5.4; Szegedy et al. (2016), section 7; tensor2tensor's
    `smoothing_cross_entropy`.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        convention: str = "t2t",
        reduction: str | None = "sum",
        name: str = "label_smoothed_cross_entropy",
        dtype: Any = None,
    ):
        if keras.dtype_policies.get(dtype or keras.config.floatx()).compute_dtype != "float64":
            dtype = "float32"  # Keras casts labels to this dtype: others would round them.
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        check_rate("label_smoothing", label_smoothing)
        check_choice("convention", convention, ("t2t", "keras"))
        self.label_smoothing = float(label_smoothing)
        self.convention = convention

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        rank = len(y_pred.shape) - 1
        y_true, sample_weight = squeezed(y_true, rank), squeezed(sample_weight, rank)
        check_weights(sample_weight, y_true)
        # keras.losses.Loss casts to its own dtype, which would round float64 logits.
        is_wide = keras.backend.standardize_dtype(y_pred.dtype) == "float64"
        if is_wide and self.dtype != "float64":
            loss = self.from_config({**self.get_config(), "dtype": "float64"})
            return loss(y_true, y_pred, sample_weight)
        if sample_weight is None and self.reduction == "sum":
            sample_weight = token_mean_weights(y_true, self.dtype)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        logits = ops.convert_to_tensor(y_pred)
        logits = ops.cast(logits, at_least_float32(logits.dtype))
        labels = ops.cast(y_true, "int32")
        # Other shapes would broadcast.
        axes = ", ".join(f"axis {axis} of `y_pred`" for axis in range(len(logits.shape) - 1))
        check_shape("y_true", labels, f"[{axes}]", *logits.shape[:-1])
        smoothing = uniform_share(self.label_smoothing, logits.shape[-1], self.convention)
        if keras.backend.backend() == "tensorflow":
            return fused_cross_entropy(labels, logits, smoothing)
        return cross_entropy(labels, logits, smoothing)

    def get_config(self) -> dict:
        config = {"label_smoothing": self.label_smoothing, "convention": self.convention}
        return {**super().get_config(), **config}
