"""Types of tensors, and the precision rule: positions, softmax and logits in at least float32."""

from typing import Any

import keras

Tensor = Any  # A tensor of the backend in use, or an array-like value.


def at_least_float32(dtype: str) -> str:
    """Returns `dtype`, or float32 if `dtype` is a half precision.

    Args:
        dtype: Name of a floating dtype, such as a layer's `compute_dtype`.

    Returns:
        `"float32"` for float16, bfloat16 and float32; `"float64"` for float64 on TensorFlow, and
        `"float32"` on JAX and torch, where Keras promotes no type beyond it.
    """
    return keras.backend.result_type(dtype, "float32")
