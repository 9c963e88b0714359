"""Muon: updates of matrices along about the nearest orthogonal matrix."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_argument, check_positive_number
from keras_transformer.layers.tensors import Tensor
from keras_transformer.training.optimizer import FusedAdam

# The odd polynomials of degree 5 that bring singular values close to 1, one after another.
_POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Muon(FusedAdam):
    """Muon for the kernels of linear maps, Adam for embeddings, norms and biases.

    Muon replaces the mean gradient of a matrix by about the nearest orthogonal matrix, so that all
    directions learn at the same speed. A kernel is a trainable matrix with the name `kernel`. Its
    update has about the size of one of Adam, so both learn with the same learning rate. The extra
    time of a step grows with the width of the model, not with the batch.

    Differs from `keras.optimizers.Muon`: no weight decay, three iterations of other polynomials
    instead of five, and `FusedAdam` for all other weights.

    Args:
        learning_rate, **kwargs: As in `keras.optimizers.Adam`.
        momentum: Decay of the sum of the gradients of a kernel.
        clip_norm: As in `GlobalClipAdam`; None for no clipping.

    Raises:
        ValueError: If `momentum` is not in [0, 1), or `clip_norm` not positive.

    Example:

    >>> keras_transformer.training.Muon(1e-3, beta_2=0.98).momentum
    0.95

    Reference: Jordan et al. (2024), "Muon"; Liu et al. (2025), arXiv 2502.16982, for the size;
    Amsel et al. (2025), "The Polar Express", arXiv 2505.16932, for the polynomials.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.95,
        clip_norm: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, **kwargs)
        check_argument(0 <= momentum < 1, "momentum", "a number in [0, 1)", momentum)
        if clip_norm is not None:
            check_positive_number("clip_norm", clip_norm)
        self.momentum, self.clip_norm = momentum, clip_norm
        self._is_kernel: list[bool] = []

    def build(self, variables: Sequence) -> None:
        super().build(variables)
        self._is_kernel = [len(v.shape) == 2 and v.name == "kernel" for v in variables]

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        if not self._is_kernel[index]:
            return super().update_step(gradient, variable, learning_rate)
        sums, gradient = self._momentums[index], ops.cast(gradient, variable.dtype)
        new_sums = self.momentum * sums + gradient
        self.assign(sums, new_sums)
        direction = orthogonalized(gradient + self.momentum * new_sums)
        size = learning_rate * 0.2 * max(variable.shape) ** 0.5
        self.assign_sub(variable, ops.cast(size, variable.dtype) * direction)

    def get_config(self) -> dict:
        own = {"momentum": self.momentum, "clip_norm": self.clip_norm}
        return {**super().get_config(), **own}


def orthogonalized(matrix: Tensor) -> Tensor:
    """Returns the matrix with its singular values replaced by numbers around 1.

    Those of more than a two-hundredth of the norm of the matrix become 0.18 to 1.87.

    Args:
        matrix: Floating tensor `[rows, columns]`.
    """
    rows, columns = matrix.shape
    wide = ops.transpose(matrix) if rows > columns else matrix
    wide = wide / (1.01 * ops.norm(wide) + 1e-7)
    identity = ops.eye(min(rows, columns), dtype=matrix.dtype)
    for linear, cubic, quintic in _POLAR_EXPRESS:
        square = ops.matmul(wide, ops.transpose(wide))
        factor = ops.matmul(square, cubic * identity + quintic * square)
        wide = linear * wide + ops.matmul(factor, wide)
    return ops.transpose(wide) if rows > columns else wide
