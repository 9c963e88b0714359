"""Linear maps over the last axis as one two-dimensional matrix product."""

from keras import ops

from keras_transformer.layers.shapes import is_decoding_step, reshape
from keras_transformer.layers.stored_kernels import multiply_by_stored, places_of


def project(inputs, kernel, bias=None, leading=None):
    """Multiply the last axis of `inputs` by `kernel` and add `bias`.

    Folding the leading axes first matters on TensorFlow, where a product of a three-dimensional
    and a two-dimensional tensor is broadcast and runs several times slower.

    Args:
        inputs: `[..., input_dim]`.
        kernel: `[input_dim, output_dim]`.
        bias: `[output_dim]`, or None.
        leading: Sizes of the leading axes of `inputs`, where the caller has them. The ONNX export
            of Keras reads them wrongly off inputs that were reshaped.

    Returns:
        `[..., output_dim]`.
    """
    [outputs] = project_together(inputs, (kernel,), (bias,), leading)
    return outputs


def project_together(inputs, kernels, biases, leading=None):
    """Multiply the same inputs by several kernels, at once where these are stored together.

    Args:
        inputs: As in `project`.
        kernels: A tuple of `[input_dim, output_dim]`.
        biases: A tuple of `[output_dim]` or None.
        leading: As in `project`.

    Returns:
        A list of `[..., output_dim]`.
    """
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
    # Side by side, product and bias become one operation on TensorFlow: faster for many rows, but
    # it lays the matrix out anew at every call, which takes longer than multiplying a few.
    if is_step:
        return ops.add(reshape(product, shape), bias)
    return reshape(ops.add(product, bias), shape)


def first_number(kernel):
    """The first number of a kernel, a scalar tensor whose value no graph knows beforehand."""
    places = places_of((kernel,))
    return kernel[0, 0] if places is None else places[0].matrix[places[0].start, 0]
