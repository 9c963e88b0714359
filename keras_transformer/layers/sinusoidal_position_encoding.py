"""Sinusoidal position encoding, section 3.5."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.checks import check_positive_number
from keras_transformer.layers.dtypes import Tensor, at_least_float32
from keras_transformer.layers.shapes import check_rank, reshape

_LEADING_BITS = 8


def position_angles(positions: Tensor, frequencies: np.ndarray, dtype: str) -> Tensor:
    """Returns `positions * frequencies` minus whole turns, up to a few rounding errors of `dtype`.

    In float32 the plain product has an error of 3e-4 at position 5,000. Here each frequency, in
    turns, is the sum of two parts of 8 bits and a small rest. Up to position 65,536, the product
    of a position and a part is exact, and so is its difference from whole turns.
    """
    positions = ops.expand_dims(ops.cast(positions, dtype), -1)
    rest, turns = frequencies / (2 * math.pi), 0.0
    for _ in range(2):
        mantissa, exponent = np.frexp(rest)
        part = np.ldexp(np.round(np.ldexp(mantissa, _LEADING_BITS)), exponent - _LEADING_BITS)
        product = positions * ops.convert_to_tensor(part, dtype=dtype)
        turns = turns + (product - ops.round(product))
        rest = rest - part
    small = positions * ops.convert_to_tensor(rest, dtype=dtype)
    return (turns + small) * (2 * math.pi)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositionEncoding(keras.layers.Layer):
    """Adds sines and cosines of the position to the inputs.

    `PE(pos, 2i) = sin(pos / 10000^(2i / d_model))`, `PE(pos, 2i + 1) = cos(...)`, from position 0,
    interleaved, computed in at least float32 and cast to the compute dtype at the end. Up to
    position 65,536 the encoding is exact, apart from the rounding to that dtype.

    Differs from tensor2tensor, which concatenates sines and cosines and spaces `d_model / 2`
    timescales over `d_model / 2 - 1` steps, and from OpenNMT-tf, which starts at position 1.

    Args:
        max_wavelength: Largest wavelength divided by 2 pi; 10,000 in the paper.

    Call arguments:
        inputs: `[batch, length, d_model]`, `d_model` even.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1.

    Returns:
        `inputs` plus the encoding, of the same shape.

    Example:

    >>> layer = keras_transformer.layers.SinusoidalPositionEncoding()
    >>> ops.shape(layer(keras.ops.zeros((1, 10, 512))))
    (1, 10, 512)

    Reference: Vaswani et al. (2017), section 3.5.
    """

    def __init__(self, max_wavelength: float = 10_000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_number("max_wavelength", max_wavelength)
        self.supports_masking = True
        self.max_wavelength = max_wavelength

    def build(self, inputs_shape: tuple) -> None:
        if inputs_shape[-1] % 2:
            rule = "The last axis of `inputs` must be even, for pairs of sine and cosine"
            raise ValueError(f"{rule}. Received: inputs_shape={tuple(inputs_shape)}")

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        check_rank("inputs", inputs, "[batch, length, d_model]")
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        d_model = inputs.shape[-1]
        if positions is None:
            positions = ops.arange(ops.shape(inputs)[1], dtype="int32")
        frequencies = float(self.max_wavelength) ** (-np.arange(0, d_model, 2) / d_model)
        angles = position_angles(positions, frequencies, at_least_float32(self.compute_dtype))
        encoding = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        encoding = reshape(encoding, (*ops.shape(positions), d_model))
        # Not `ops.add`: on TensorFlow it mistakes an encoding of length 0 for a bias.
        return inputs + ops.cast(encoding, inputs.dtype)

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:
        return inputs_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
