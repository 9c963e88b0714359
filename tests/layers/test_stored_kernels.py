"""Kernels that are stored as their transposes, together and in parts."""

import math
import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import FeedForward, MultiHeadAttention, TiedEmbedding
from keras_transformer.layers.kernels import stored_kernels
from keras_transformer.layers.kernels.stored_kernels import StoredTranspose, multiply_few_rows

GENERATOR = np.random.default_rng(0)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports are TensorFlow's"
)


def test_only_the_transposes_are_read():
    import tensorflow as tf

    layer, inputs = FeedForward(16), GENERATOR.normal(size=(2, 3, 8)).astype("float32")
    expected = layer(inputs).numpy()
    transposes = one_by_one(layer)
    forget_kernels(layer)
    with stored_kernels.stored_kernels(transposes):
        found = tf.function(lambda x: layer(x))(inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert not np.allclose(layer(inputs), expected)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("length", [3, 20])
@pytest.mark.parametrize("store", ["one_by_one", "together", "backwards"])
def test_attention_of_different_sizes(store, length, num_parts, monkeypatch):
    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 10)
    layer = MultiHeadAttention(num_heads=2, key_dim=4, value_dim=3, use_bias=True)
    inputs, others = GENERATOR.normal(size=(2, 2, length, 8)).astype("float32")
    expected = [layer(inputs, inputs), layer(inputs, others), layer(inputs, others, inputs)]
    transposes = STORES[store](layer)
    forget_kernels(layer)
    with stored_kernels.stored_kernels(transposes, num_parts):
        found = [layer(inputs, inputs), layer(inputs, others), layer(inputs, others, inputs)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_a_cache(num_parts, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 10)
    layer = MultiHeadAttention(num_heads=2, key_dim=4, use_bias=True)
    inputs = GENERATOR.normal(size=(2, 3, 8)).astype("float32")
    expected = layer(inputs, inputs, use_causal_mask=True).numpy()
    transposes = together(layer)
    forget_kernels(layer)
    with stored_kernels.stored_kernels(transposes, num_parts):
        cache, outputs = layer.make_cache(batch_size=2), []
        for step in range(3):
            token = tf.constant(inputs[:, step : step + 1])
            output, cache = layer(token, token, use_causal_mask=True, cache=cache)
            outputs.append(output)
    np.testing.assert_allclose(tf.concat(outputs, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("has_amx", [False, True])
@pytest.mark.parametrize("num_rows", [1, 4, 9])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 100])
def test_parts_of_a_product(num_parts, num_rows, has_amx, dtype, monkeypatch):
    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 6)
    monkeypatch.setattr(stored_kernels, "has_amx", lambda: has_amx)
    # Small integers, whose products and sums are exact in bfloat16.
    rows = GENERATOR.integers(-3, 4, (num_rows, 6)).astype("float32")
    transpose = GENERATOR.integers(-3, 4, (7, 6)).astype("float32")
    arguments = [ops.convert_to_tensor(array, dtype) for array in (rows, transpose)]
    with stored_kernels.stored_kernels({}, num_parts):
        found = multiply_few_rows(*arguments)
    np.testing.assert_array_equal(ops.cast(found, "float32"), rows @ transpose.T)


def test_products_run_as_parts_only_where_a_part_is_large_enough(monkeypatch):
    import tensorflow as tf

    def num_products(smallest):
        monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", smallest)
        layer = TiedEmbedding(10, 4)
        layer.build()
        with stored_kernels.stored_kernels({}, 3):
            function = tf.function(lambda x: layer(x, reverse=True))
            graph = function.get_concrete_function(tf.zeros([2, 1, 4])).graph
        return sum(operation.type == "MatMul" for operation in graph.get_operations())

    assert [num_products(smallest) for smallest in (10, 14, 21, 40)] == [3, 2, 1, 1]


@pytest.mark.parametrize("has_amx, num_stored", [(True, 2), (False, 1)])
def test_small_kernels_are_transposed_only_with_amx(has_amx, num_stored, monkeypatch):
    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 40)
    monkeypatch.setattr(stored_kernels, "has_amx", lambda: has_amx)
    layers = [FeedForward(width, dtype="bfloat16") for width in (5, 10)]  # 40 and 80 numbers
    for layer in layers:
        layer.build((None, None, 8))
    model = types.SimpleNamespace(
        weights=[weight for layer in layers for weight in layer.weights],
        dtype_policy=keras.DTypePolicy("bfloat16"),
    )
    variables, transposes = stored_kernels.stored_variables(model)
    assert len(transposes) == 2 * num_stored
    sizes = [sum(math.prod(one.shape) for one in some) for some in (variables, model.weights)]
    assert sizes[0] == sizes[1]
    for kernel in (weight for weight in model.weights if id(weight) in transposes):
        place = transposes[id(kernel)]
        np.testing.assert_array_equal(place.matrix[place.start : place.end], ops.transpose(kernel))


def test_only_kernels_in_bfloat16_are_transposed(monkeypatch):
    """The members of an ensemble may differ in their dtypes."""
    monkeypatch.setattr(stored_kernels, "has_amx", lambda: True)
    dtypes = "bfloat16", "mixed_bfloat16", "float32"
    layers = [FeedForward(5, dtype=dtype) for dtype in dtypes]
    for layer in layers:
        layer.build((None, None, 8))
    weights = [weight for layer in layers for weight in layer.weights]
    policy = keras.DTypePolicy("bfloat16")  # that of the first
    ensemble = types.SimpleNamespace(weights=weights, dtype_policy=policy)
    variables, transposes = stored_kernels.stored_variables(ensemble)
    assert set(transposes) == {id(kernel) for kernel in kernels_of(layers[0])}
    assert len(variables) == len(weights)


def one_by_one(layer):
    return {
        id(kernel): StoredTranspose(transposed(kernel), 0, kernel.shape[1])
        for kernel in kernels_of(layer)
    }


def together(layer, backwards=False):
    """All kernels of the inputs' width behind each other, the last one by itself."""
    import tensorflow as tf

    *kernels, last = kernels_of(layer)
    if backwards:
        kernels.reverse()
    matrix = tf.Variable(tf.concat([transposed(kernel) for kernel in kernels], axis=0))
    found, start = {}, 0
    for kernel in kernels:
        found[id(kernel)] = StoredTranspose(matrix, start, start + kernel.shape[1])
        start += kernel.shape[1]
    return found | {id(last): StoredTranspose(transposed(last), 0, last.shape[1])}


def kernels_of(layer):
    return [weight for weight in layer.weights if len(weight.shape) == 2]


def forget_kernels(layer):
    for kernel in kernels_of(layer):
        kernel.assign(np.zeros(kernel.shape))


def transposed(kernel):
    import tensorflow as tf

    return tf.Variable(tf.transpose(kernel.value))


STORES = {
    "one_by_one": one_by_one,
    "together": together,
    "backwards": lambda layer: together(layer, backwards=True),
}
