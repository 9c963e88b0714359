"""Linear maps over the last axis as one two-dimensional matrix product."""

from keras import ops


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
    outputs = ops.matmul(ops.reshape(inputs, (-1, input_dim)), kernel)
    if bias is not None:
        outputs = ops.add(outputs, ops.cast(bias, inputs.dtype))
    return ops.reshape(outputs, (*leading, output_dim))
