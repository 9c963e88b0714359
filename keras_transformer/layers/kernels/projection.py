"""Linear maps over the last axis as one two-dimensional matrix product."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.kernels.shapes import is_decoding_step, reshape
from keras_transformer.layers.kernels.stored_kernels import multiply_by_stored, places_of


def project(
    inputs: Tensor, kernel: Tensor, bias: Tensor | None = None, leading: Sequence[Any] | None = None
) -> Tensor:
    """Multiplies the last axis of `inputs` by `kernel` and adds `bias`.

    Folding the leading axes first matters on TensorFlow, where a product of a three-dimensional
    and a two-dimensional tensor is broadcast and runs several times slower.

    Args:
        inputs: `[..., input_dim]`.
        kernel: `[input_dim, output_dim]`.
        bias: `[output_dim]`, or None.
        leading: Sizes of the leading axes of `inputs`, if known to the caller. The ONNX export
            of Keras misreads them from inputs that were reshaped.
    """
    [outputs] = project_together(inputs, (kernel,), (bias,), leading)
    return outputs


def project_together(
    inputs: Tensor,
    kernels: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    leading: Sequence[Any] | None = None,
) -> list[Tensor]:
    """Applies `project` with each kernel and bias; one product serves kernels stored together."""
    places = places_of(kernels)
    if places is None:
        rows = reshape(inputs, (-1, kernels[0].shape[0]))
        # Keras casts variables inside `Layer.__call__` only, and caches are made outside of it.
        products = [ops.matmul(rows, ops.cast(kernel, rows.dtype)) for kernel in kernels]
    else:
        products = multiply_by_stored(inputs, places)
    leading, is_step = leading or ops.shape(inputs)[:-1], is_decoding_step(inputs)
    return [
        _with_bias(product, bias, (*leading, kernel.shape[1]), is_step)
        for product, kernel, bias in zip(products, kernels, biases, strict=True)
    ]


def _with_bias(product, bias, shape, is_step):
    if bias is None:
        return reshape(product, shape)
    bias = ops.cast(bias, product.dtype)
    # TensorFlow fuses a product and the bias after it. The fused product is faster for many rows,
    # but reorders the matrix at every call, which costs more than the product of a few rows.
    if is_step:
        return ops.add(reshape(product, shape), bias)
    return reshape(ops.add(product, bias), shape)


def first_number(kernel: Tensor) -> Tensor:
    """Returns the first number of a kernel, a scalar that no graph can fold into a constant."""
    places = places_of((kernel,))
    return kernel[0, 0] if places is None else places[0].matrix[places[0].start, 0]
