"""Products of matrices in int8 beside integers of NumPy, and beside the product of Keras."""

import platform

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import int8_products
from keras_transformer.layers.int8_products import (
    LARGEST_WEIGHT,
    ConstantKernels,
    Dense,
    ReversibleEmbedding,
    int8_config,
    quantize_maps,
)
from tests.closeness import assert_close

GENERATOR = np.random.default_rng(0)
HAS_PRODUCT = int8_products.has_int8_product()
needs_product = pytest.mark.skipif(not HAS_PRODUCT, reason="no product of bytes on this machine")


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow" or platform.machine() not in ("x86_64", "AMD64"),
    reason="the product is that of TensorFlow on x86",
)
def test_x86_processors_have_the_product():
    import tensorflow as tf

    assert HAS_PRODUCT or tf.config.list_physical_devices("GPU")


@needs_product
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 200])
def test_product_of_the_largest_bytes_is_exact(rows, is_transposed):
    import tensorflow as tf

    bytes_ = GENERATOR.integers(0, 256, (rows, 512)).astype("uint8")
    matrix = GENERATOR.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (512, 48)).astype("int8")
    bytes_[0], matrix[:, 0], matrix[:, 1] = 255, LARGEST_WEIGHT, -LARGEST_WEIGHT
    offset = np.arange(48, dtype="float32")
    expected = bytes_.astype("int64") @ matrix + offset
    given = np.ascontiguousarray(matrix.T) if is_transposed else matrix

    @tf.function(autograph=False)
    def multiply(rows, matrix):
        return int8_products._multiply_bytes(rows, matrix, offset, is_transposed)

    variable = tf.Variable(given)
    for _ in range(2):  # The second call reads what the first one rearranged.
        np.testing.assert_array_equal(multiply(tf.constant(bytes_), variable), expected)
    # Another number of rows, whose product may need the matrix in another order.
    np.testing.assert_array_equal(multiply(tf.constant(bytes_[:1]), variable), expected[:1])


def built_map(kind, dtype):
    if kind == "logits":
        layer = ReversibleEmbedding(24, 16, dtype=dtype)
        layer.build()
        return layer, lambda x: layer(x, reverse=True)
    layer = Dense(24, activation="relu", use_bias=kind == "bias", dtype=dtype)
    layer.build((None, 16))
    if kind == "bias":
        layer.bias.assign(GENERATOR.normal(size=24))
    return layer, layer


def numbers(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def compiled(function):
    """A function for one shape, compiled on TensorFlow as in an export."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.function(function, autograph=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "bias", "logits"])
def test_fast_maps_are_those_of_keras(kind, dtype, monkeypatch):
    layer, call = built_map(kind, dtype)
    states = ops.convert_to_tensor(GENERATOR.normal(size=(5, 16)), dtype=dtype)
    states = ops.concatenate([states, ops.zeros((1, 16), dtype=dtype)])
    quantize_maps([layer])
    kernels, products = ConstantKernels([layer]), []
    assert bool(kernels) == HAS_PRODUCT
    product = int8_products._product
    monkeypatch.setattr(
        int8_products, "_product", lambda *given: products.append(given) or product(*given)
    )
    outputs, expected = compiled(kernels.used_in(call))(states), call(states)
    assert len(products) == HAS_PRODUCT
    assert outputs.dtype == expected.dtype and outputs.shape == expected.shape
    assert_close(numbers(outputs), numbers(expected), dtype)


def enable_lora(layer):
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(GENERATOR.normal(size=layer.lora_kernel_b.shape))


# What the layer is, and whether its product is fast.
STATES = {
    "weights of 7 bits": (lambda d: quantize_maps([d]), HAS_PRODUCT),
    "weights of 8 bits": (lambda d: d.quantize("int8"), False),
    "int4": (lambda d: d.quantize("int4"), False),
    "lora before": (lambda d: (quantize_maps([d]), enable_lora(d)), False),
    "weights alone": (
        lambda d: d.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(
            int8_config(d).weight_quantizer, None)), False),
    "not quantized": (lambda d: None, False),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_other_maps_compute_as_before(state):
    change, is_fast = STATES[state]
    layer, _ = built_map("bias", "float32")
    change(layer)
    kernels = ConstantKernels([layer])
    assert bool(kernels) == is_fast
    states = ops.convert_to_tensor(GENERATOR.normal(size=(5, 16)), dtype="float32")
    assert_close(numbers(compiled(kernels.used_in(layer))(states)), numbers(layer(states)))


def test_lora_that_is_enabled_later_counts():
    layer, _ = built_map("bias", "float32")
    quantize_maps([layer])
    kernels = ConstantKernels([layer])
    enable_lora(layer)
    states = ops.convert_to_tensor(GENERATOR.normal(size=(5, 16)), dtype="float32")
    assert_close(numbers(compiled(kernels.used_in(layer))(states)), numbers(layer(states)))
    factors = layer.lora_kernel_a, layer.lora_kernel_b
    change = ops.matmul(ops.matmul(states, factors[0]), factors[1])
    assert np.abs(numbers(change)).max() > 0.1


def test_fast_products_end_with_the_function():
    layer, _ = built_map("bias", "float32")
    quantize_maps([layer])
    kernels = ConstantKernels([layer])

    def fail(x):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        kernels.used_in(fail)(1)
    assert not int8_products._CONSTANT.get()
