"""Fast products of matrices in int8, on TensorFlow and x86 processors.

Keras' own product does not use the processor's instructions for bytes; that of oneDNN does. But
oneDNN rearranges a matrix at its first use and keeps the result, so it would not see a change.
Therefore only searches and exports use it, whose matrices are constant (`ConstantKernels`).
"""

import contextlib
import contextvars
import functools
import gc
import logging
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.tensors import Tensor

_LOGGER = logging.getLogger(__name__)
_IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
if _IS_TENSORFLOW:
    import tensorflow as tf

# Without VNNI, processors add pairs of products of an unsigned and a signed byte in 16 bits, where
# 2 * 255 * 64 has room, and 2 * 255 * 127 has not.
LARGEST_WEIGHT = 64
# The largest input after scaling, and what is added to inputs to make them unsigned bytes.
_LARGEST_INPUT, _ZERO = 127, 128
_NONE: Mapping = types.MappingProxyType({})
# Offset and scale of each map whose matrix is constant, by its id.
_CONSTANT: contextvars.ContextVar[Mapping] = contextvars.ContextVar("constant", default=_NONE)


def int8_config(part: Any) -> keras.quantizers.Int8QuantizationConfig:
    """Returns the configuration with which a map or an embedding gets matrices for fast products.

    Its weights have 7 bits instead of 8, so that no processor's sums overflow.

    Args:
        part: A `keras.layers.Dense` or `keras.layers.ReversibleEmbedding`.

    Example:

    >>> dense = keras.layers.Dense(8)
    >>> dense.build((None, 4))
    >>> dense.quantize("int8", config=int8_config(dense))
    """
    return keras.quantizers.Int8QuantizationConfig(
        keras.quantizers.AbsMaxQuantizer(
            axis=0 if isinstance(part, keras.layers.Dense) else -1,
            value_range=(-LARGEST_WEIGHT, LARGEST_WEIGHT),
        ),
        keras.quantizers.AbsMaxQuantizer(axis=-1),
    )


def quantize_maps(maps: list) -> None:
    """Quantizes maps and embeddings with `int8_config`; leaves those quantized or with LoRA.

    Logs a warning where there are no fast products.

    Args:
        maps: Built `Dense` and `ReversibleEmbedding` layers, as `all_maps` returns them.
    """
    if not has_int8_product():
        rule = "int8 is fast only on TensorFlow and x86 processors, without a GPU "
        _LOGGER.warning(rule + "(CUDA_VISIBLE_DEVICES= hides it); here it is slow.")
    with quick_quantization():
        for part in maps:
            if part.quantization_mode is None and not part.lora_enabled:
                part.quantize("int8", config=int8_config(part))


@contextlib.contextmanager
def quick_quantization() -> Iterator[None]:
    """Makes `quantize` faster: Keras collects garbage after each map, 0.1 s if it is not frozen."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class ConstantKernels:
    """Says that the matrices of some maps do not change any more, so that products may be fast.

    The product stays Keras' for maps that are not quantized in int8, that have LoRA, or larger
    weights than `int8_config` allows, and for all maps if there is no fast product here.

    Args:
        maps: Built `Dense` and `ReversibleEmbedding` layers, as `all_maps` returns them.
    """

    def __init__(self, maps: list) -> None:
        self._constant: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for part in maps:
            is_int8 = part.quantization_mode == "int8" and not part.lora_enabled
            if is_int8 and _has_usual_inputs(part) and has_int8_product():
                matrix, scale, axis = _weights(part)
                if np.abs(matrix.astype("int16")).max() <= LARGEST_WEIGHT:
                    # Inputs are shifted by `_ZERO`, so `_ZERO` times each sum is subtracted.
                    offset = (-_ZERO * matrix.sum(axis, dtype="int64")).astype("float32")
                    self._constant[id(part)] = offset, 1 / scale

    def __bool__(self) -> bool:
        return bool(self._constant)

    def used_in(self, function: Callable) -> Callable:
        """Returns a function that computes with fast products, to be compiled or exported."""

        @functools.wraps(function)
        def call(*args, **kwargs):
            token = _CONSTANT.set(self._constant)
            try:
                return function(*args, **kwargs)
            finally:
                _CONSTANT.reset(token)

        return call


class Dense(keras.layers.Dense):
    """A `keras.layers.Dense` whose products are fast where `ConstantKernels` are used."""

    def quantize(self, mode: str, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras refuses subclasses.

    def quantized_call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        constant = _CONSTANT.get().get(id(self))
        if constant is None or self.lora_enabled:
            return super().quantized_call(inputs, *args, **kwargs)
        outputs = _product(inputs, self.kernel, False, *constant)
        outputs = ops.cast(outputs, self.compute_dtype)
        if self.bias is not None:
            outputs = outputs + ops.cast(self.bias, self.compute_dtype)
        return outputs if self.activation is None else self.activation(outputs)


class ReversibleEmbedding(keras.layers.ReversibleEmbedding):
    """A `keras.layers.ReversibleEmbedding`, tied, with fast products like those of `Dense`."""

    def quantize(self, mode: str, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras refuses subclasses.

    def quantized_call(self, inputs: Tensor, reverse: bool = False, **kwargs: Any) -> Tensor:
        constant = _CONSTANT.get().get(id(self)) if reverse else None
        if constant is None:
            return super().quantized_call(inputs, reverse=reverse, **kwargs)
        outputs = _product(inputs, self.embeddings, True, *constant)
        return ops.cast(outputs, self.compute_dtype)


def _has_usual_inputs(part):
    """Returns whether Keras scales each vector of the inputs to the largest byte."""
    quantizer = part.inputs_quantizer  # None leaves inputs as they are.
    return quantizer is not None and tuple(quantizer.value_range) == (
        -_LARGEST_INPUT,
        _LARGEST_INPUT,
    )


def _weights(part):
    """Returns matrix, float32 scales `[units]`, and the axis of the inputs, of a map in int8."""
    if isinstance(part, keras.layers.Dense):
        matrix, scale, axis = part.kernel, part.kernel_scale, 0
    else:
        matrix, scale, axis = part.embeddings, part.embeddings_scale, 1
    matrix, scale = ops.convert_to_numpy(matrix), ops.convert_to_numpy(scale)
    return matrix, scale.astype("float32").reshape(-1), axis


def _product(inputs, matrix, is_transposed, offset, scale):
    """Returns float32 `[rows, units]`: the same sums of integers as in Keras, scaled back.

    `inputs` are `[rows, width]`; the matrix is int8 `[width, units]`, or `[units, width]` if it is
    transposed. `offset` and `scale`, `[units]`, are those of `ConstantKernels`.
    """
    inputs = ops.cast(inputs, "float32")
    largest = ops.max(ops.abs(inputs), axis=-1, keepdims=True) + keras.config.epsilon()
    rows = ops.round(inputs * (_LARGEST_INPUT / largest)) + float(_ZERO)
    rows = ops.cast(rows, "uint8")
    sums = _multiply_bytes(rows, ops.convert_to_tensor(matrix), offset, is_transposed)
    # One factor after the other: TensorFlow can overwrite `sums`.
    return sums * scale * (largest / _LARGEST_INPUT)


def _multiply_bytes(rows, matrix, offset, is_transposed):
    """Returns the product of uint8 and int8 as float32, plus the offset of each column."""
    value = tf.compat.v1.AttrValue

    def dtypes(*kinds):
        return value(list=value.ListValue(type=[dtype.as_datatype_enum for dtype in kinds]))

    inputs = [tf.bitcast(rows, tf.quint8), tf.bitcast(matrix, tf.qint8), tf.constant(offset)]
    # With these ranges, the scales of the operation are 1.
    ranges = [tf.constant(limit) for limit in (0.0, 255.0, -127.0, 127.0)]
    # TensorFlow's public operations rearrange the matrix at every call if it is a variable.
    operation = tf.compat.v1.get_default_graph().create_op(
        "_QuantizedMatMul",
        inputs + ranges,
        [tf.float32],
        name="int8_product",
        attrs={
            "Tdevice_inputs": dtypes(*(tensor.dtype for tensor in inputs)),
            "Thost_inputs": dtypes(*(tensor.dtype for tensor in ranges)),
            "Tdevice_outputs": dtypes(tf.float32),
            "Thost_outputs": dtypes(),
            "T1": value(type=tf.quint8.as_datatype_enum),
            "T2": value(type=tf.qint8.as_datatype_enum),
            "transpose_b": value(b=is_transposed),
            "is_weight_const": value(b=True),
            "fused_ops": value(list=value.ListValue(s=[b"BiasAdd", b"Dequantize"])),
        },
    )
    [outputs] = operation.outputs
    outputs.set_shape([rows.shape[0], offset.shape[0]])
    return outputs


@functools.cache
def has_int8_product() -> bool:
    """Returns whether TensorFlow multiplies bytes correctly here: on x86 processors, not GPUs."""
    if not _IS_TENSORFLOW or tf.config.list_physical_devices("GPU"):
        return False
    rows = np.full((2, 32), 255, "uint8")
    matrix = np.full((32, 16), LARGEST_WEIGHT, "int8")

    @tf.function(autograph=False)
    def multiply():
        return _multiply_bytes(tf.constant(rows), tf.constant(matrix), np.float32(matrix[0]), False)

    try:
        found = multiply.get_concrete_function()().numpy()  # a graph, also in eager debugging
        return bool((found == rows.astype("int64") @ matrix + matrix[0]).all())
    except (tf.errors.OpError, ValueError):
        return False
