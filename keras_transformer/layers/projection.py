"""Linear maps over the last axis as one two-dimensional matrix product."""

import contextlib
import contextvars

from keras import ops

from keras_transformer.layers.shapes import is_decoding_step, reshape

_TRANSPOSES = contextvars.ContextVar("transposes", default=None)


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
    transpose = _transpose_of(kernel)
    if transpose is None:
        # Keras casts variables inside `Layer.__call__` only, and caches are made outside of it.
        kernel = ops.cast(kernel, inputs.dtype)
        outputs = ops.matmul(reshape(inputs, (-1, input_dim)), kernel)
    else:
        outputs = _multiply_by_transpose(reshape(inputs, (1, -1, input_dim)), transpose)
    shape = (*leading, output_dim)
    if bias is None:
        return reshape(outputs, shape)
    bias = ops.cast(bias, inputs.dtype)
    # Side by side, product and bias become one operation on TensorFlow: faster for many rows, but
    # it lays the matrix out anew at every call, which takes longer than multiplying a few.
    if is_decoding_step(inputs):
        return ops.add(reshape(outputs, shape), bias)
    return reshape(ops.add(outputs, bias), shape)


def first_number(kernel):
    """The first number of a kernel, a scalar tensor whose value no graph knows beforehand."""
    transpose = _transpose_of(kernel)
    return kernel[0, 0] if transpose is None else transpose[0, 0, 0]


def _transpose_of(kernel):
    return (_TRANSPOSES.get() or {}).get(id(kernel))


def _multiply_by_transpose(rows, transpose):
    import tensorflow as tf

    # As batches of one: a plain product of a few MB runs on one thread in TensorFlow.
    return tf.matmul(rows, transpose, transpose_b=True)


@contextlib.contextmanager
def transposed_kernels(transposes):
    """Let `project` read kernels from variables that hold their transposes, on TensorFlow.

    In bfloat16 a product of a few rows is faster so: of a kernel as Keras keeps it oneDNN makes a
    copy in its own order at every call.

    Args:
        transposes: Dict from the `id` of a kernel to a variable `[1, output_dim, input_dim]` of
            the dtype that is computed in.
    """
    token = _TRANSPOSES.set(transposes)
    try:
        yield
    finally:
        _TRANSPOSES.reset(token)
