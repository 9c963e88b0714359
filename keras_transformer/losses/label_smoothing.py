"""The paper's loss, as a `keras.losses.Loss` of logits."""

from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_choice
from keras_transformer.layers.tensors import Tensor, at_least_float32
from keras_transformer.losses.cross_entropy import cross_entropy, uniform_share
from keras_transformer.models.micro_batches import token_mean_weights

if keras.backend.backend() == "tensorflow":
    from keras_transformer.losses.fused_cross_entropy import fused_cross_entropy

CONVENTIONS = ("t2t", "keras")


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
        reduction, name, dtype: As in `keras.losses.Loss`; float64 logits are never cast down.

    Call arguments:
        y_true: int `[batch, length]`, ids in `[0, V)`.
        y_pred: float `[batch, length, V]`, logits; half precisions are raised to float32.

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
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"`label_smoothing` must be in [0, 1). Received: {label_smoothing=}")
        check_choice("convention", convention, CONVENTIONS)
        self.label_smoothing = float(label_smoothing)
        self.convention = convention

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
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
        smoothing = uniform_share(self.label_smoothing, logits.shape[-1], self.convention)
        is_tensorflow = keras.backend.backend() == "tensorflow"
        return (fused_cross_entropy if is_tensorflow else cross_entropy)(labels, logits, smoothing)

    def get_config(self) -> dict:
        config = {"label_smoothing": self.label_smoothing, "convention": self.convention}
        return {**super().get_config(), **config}
