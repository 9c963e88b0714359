"""Types of tensors, and the precision rule: positions, softmax and logits in at least float32."""

from typing import Any

import keras

Tensor = Any  # A tensor of the backend in use, or an array-like value.


def at_least_float32(dtype: str) -> str:
    """Returns float32 for half precision and float32; on TensorFlow, float64 stays float64.

    On JAX and torch Keras promotes no type beyond float32.
    """
    return keras.backend.result_type(dtype, "float32")
