"""Linear maps over the last axis as one two-dimensional matrix product."""

from keras import ops

from keras_transformer.layers.shapes import is_decoding_step, reshape


def project(inputs, kernel, bias=None):
    """Multiply the last axis of `inputs` by `kernel` and add `bias`.

    Folding the leading axes first matters on TensorFlow, where a product of a three-dimensional
    and a two-dimensional tensor is broadcast and runs several times slower.

    Args:
        inputs: `[..., input_dim]`.
        kernel: `[input_dim, output_dim]`.
        bias: `[output_dim]`, or None.

    Returns:
        `[..., output_dim]`.
    """
    input_dim, output_dim = kernel.shape
    leading = ops.shape(inputs)[:-1]
    # Keras casts variables inside `Layer.__call__` only, and caches are made outside of it.
    kernel = ops.cast(kernel, inputs.dtype)
    outputs = ops.matmul(reshape(inputs, (-1, input_dim)), kernel)
    shape = (*leading, output_dim)
    if bias is None:
        return reshape(outputs, shape)
    bias = ops.cast(bias, inputs.dtype)
    # Side by side, product and bias become one operation on TensorFlow: faster for many rows, but
    # it lays the matrix out anew at every call, which takes longer than multiplying a few.
    if is_decoding_step(inputs):
        return ops.add(reshape(outputs, shape), bias)
    return reshape(ops.add(outputs, bias), shape)
