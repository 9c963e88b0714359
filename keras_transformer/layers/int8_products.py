"""Products of quantized matrices with the integer instructions of the processor, on TensorFlow.

Keras multiplies matrices of int8 by loops of TensorFlow without such instructions. oneDNN's product
is many times as fast, but it rearranges a matrix once and keeps the result, so it is used only
where `ConstantKernels` says that the matrices do not change: in searches and exports.
"""

import contextvars
import functools
import gc
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.tensors import Tensor

_IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
if _IS_TENSORFLOW:
    import tensorflow as tf

# Without VNNI, processors add pairs of products of an unsigned and a signed byte in 16 bits, where
# 2 * 255 * 64 has room, and 2 * 255 * 127 has not.
LARGEST_WEIGHT = 64
_LARGEST_INPUT, _ZERO = 127, 128  # of a row; bytes without a sign are shifted by 128
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
    """Quantizes those of some maps and embeddings that are plain, so that they have fast products.

    Args:
        maps: Built `Dense` and `ReversibleEmbedding` layers, as `all_maps` returns them.
    """
    # Keras collects garbage after each map, which takes 0.1 s unless all objects are frozen.
    gc.freeze()
    for part in maps:
        if part.quantization_mode is None and not part.lora_enabled:
            part.quantize("int8", config=int8_config(part))
    gc.unfreeze()


class ConstantKernels:
    """The matrices of int8 of some maps, which do not change any more.

    Maps that are not quantized in int8, that have LoRA, or larger weights than `int8_config` allows
    compute as before, and so do all where the backend has no such product.

    Args:
        maps: Built `Dense` and `ReversibleEmbedding` layers, as `all_maps` returns them.
    """

    def __init__(self, maps: list) -> None:
        self._constant: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for part in maps if has_int8_product() else ():
            quantizer = getattr(part, "inputs_quantizer", None)
            is_usual = getattr(quantizer, "value_range", None) == (-_LARGEST_INPUT, _LARGEST_INPUT)
            if part.quantization_mode != "int8" or part.lora_enabled or not is_usual:
                continue
            is_dense = isinstance(part, keras.layers.Dense)
            matrix = ops.convert_to_numpy(part.kernel if is_dense else part.embeddings)
            if np.abs(matrix.astype("int16")).max() <= LARGEST_WEIGHT:
                axis = 0 if is_dense else 1
                scale = ops.convert_to_numpy(
                    part.kernel_scale if is_dense else part.embeddings_scale
                )
                # Inputs are shifted by `_ZERO`, so the sums of weights are subtracted.
                offset = (-_ZERO * matrix.sum(axis, dtype="int64")).astype("float32")
                self._constant[id(part)] = offset, 1 / scale.astype("float32").reshape(-1)

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


def _product(inputs, matrix, is_transposed, offset, scale):
    """Returns float32 `[rows, units]`: the integers that Keras computes, times their scales.

    `inputs` are `[rows, width]`; the matrix is int8 `[width, units]`, or `[units, width]` if it is
    transposed; `scale` and `offset` are `[units]`.
    """
    inputs = ops.cast(inputs, "float32")
    largest = ops.max(ops.abs(inputs), axis=-1, keepdims=True) + keras.config.epsilon()
    rows = ops.round(inputs * (_LARGEST_INPUT / largest)) + float(_ZERO)
    rows = ops.cast(rows, "uint8")
    sums = _multiply_bytes(rows, ops.convert_to_tensor(matrix), offset, is_transposed)
    # Two passes over memory, in place.
    return sums * scale * (largest / _LARGEST_INPUT)


def _multiply_bytes(rows, matrix, offset, is_transposed):
    """Returns the product of uint8 and int8 as float32, plus the offset of each column."""
    value = tf.compat.v1.AttrValue

    def dtypes(*kinds):
        return value(list=value.ListValue(type=[dtype.as_datatype_enum for dtype in kinds]))

    inputs = [tf.bitcast(rows, tf.quint8), tf.bitcast(matrix, tf.qint8), tf.constant(offset)]
    # With these ranges, the scales of the operation are 1.
    ranges = [tf.constant(limit) for limit in (0.0, 255.0, -127.0, 127.0)]
    # The operations with public names would rearrange a matrix that is a variable at every call.
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
        return bool((multiply().numpy() == rows.astype("int64") @ matrix + matrix[0]).all())
    except (tf.errors.OpError, ValueError):
        return False
