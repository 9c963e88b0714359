"""One matrix, two uses: scaled lookup with padding at zero, and unscaled projection."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import TiedEmbedding
from tests.closeness import assert_close
from tests.layers.harness import WIDEST
from tests.layers.oracle_parameters import array

IDS = np.array([[5, 7, 0, 0], [1, 0, 10, 2]], "int32")


@pytest.mark.parametrize("dtype, policy", [
    ("int8", "float32"), ("uint8", "mixed_bfloat16"), ("uint16", "mixed_float16"),
    ("int64", "float32"), ("float32", "mixed_bfloat16"), ("float32", "mixed_float16"),
])  # fmt: skip
def test_ids_of_any_number_type(dtype, policy):
    """As in `keras.layers.Embedding`: 257 is no number of bfloat16, 2049 none of float16."""
    size = {"int8": 127, "uint8": 255}.get(dtype, 2050)
    ids = np.array([[0, size // 8 + 1, size - 1, 1]])
    layer = TiedEmbedding(size, 4, mask_zero=True, dtype=policy)
    peer = keras.layers.Embedding(size, 4, mask_zero=True, dtype=policy)
    peer.build(ids.shape)
    layer.build(ids.shape)
    peer.embeddings.assign(layer.embeddings)
    ids = ids.astype(dtype)
    outputs, expected = layer(ids), peer(ids)
    np.testing.assert_array_equal(array(outputs)[:, 1:], array(expected)[:, 1:] * 2)
    assert not array(outputs)[:, 0].any()
    np.testing.assert_array_equal(array(outputs._keras_mask), array(expected._keras_mask))


def test_the_embedding_of_padding_is_zero():
    for padding_id in (0, 7):
        outputs = array(TiedEmbedding(11, 6, padding_id=padding_id)(IDS))
        assert not outputs[IDS == padding_id].any() and outputs[IDS != padding_id].all()
    assert array(TiedEmbedding(11, 6, padding_id=None)(IDS)).all()


@pytest.mark.parametrize("shape", [(2, 6), (1, 2, 3, 6)])
def test_projection_uses_the_same_matrix_unscaled_without_bias(shape):
    layer = TiedEmbedding(11, 6, dtype=WIDEST)
    layer(IDS)
    states = np.random.default_rng(1).normal(size=shape)
    want = states @ array(layer.embeddings).T
    assert_close(array(layer(states, reverse=True)), want, dtype=WIDEST)


def test_the_logits_may_have_a_bias_of_all_or_of_chosen_tokens(tmp_path):
    inputs = keras.Input((None, 6))
    layer = TiedEmbedding(11, 6, use_bias=True)
    model = keras.Model(inputs, layer(inputs, reverse=True))
    layer.bias.assign(np.arange(11.0))
    states = np.random.default_rng(1).normal(size=(2, 3, 6)).astype("float32")
    want = states @ array(layer.embeddings).T + np.arange(11.0)
    assert_close(array(model(states)), want)
    ids = np.array([3, 10], "int32")
    chosen = layer(states, reverse=True, embeddings=layer.output_embeddings(ids))
    assert_close(array(chosen), want[..., ids])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again(states)), array(model(states)))


@pytest.mark.parametrize("policy, dtype", [
    (WIDEST, WIDEST), ("mixed_bfloat16", "float32"), ("float16", "float32"),
])  # fmt: skip
def test_logits_are_at_least_float32_eager_and_declared(policy, dtype):
    layer = TiedEmbedding(11, 6, dtype=policy)
    states = layer(IDS)
    assert keras.backend.standardize_dtype(states.dtype) == layer.compute_dtype
    assert keras.backend.standardize_dtype(layer(states, reverse=True).dtype) == dtype
    product = layer.project(states[0])
    assert keras.backend.standardize_dtype(product.dtype) == layer.compute_dtype
    declared = layer(keras.KerasTensor((None, None, 6), layer.compute_dtype), reverse=True)
    assert declared.dtype == dtype and declared.shape == (None, None, 11)


def test_initial_matrix_is_normal_with_std_of_the_inverse_root_of_the_width():
    layer = TiedEmbedding(37_000, 64)
    layer.build()
    values = array(layer.embeddings)
    np.testing.assert_allclose(values.std(), 64**-0.5, rtol=0.01)


def test_padding_never_gets_a_gradient_from_the_lookup():
    layer = TiedEmbedding(11, 6)
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
    before = layer.get_weights()[0]
    model.train_on_batch(IDS, np.ones((2, 4, 6), "float32"))
    moved = np.any(layer.get_weights()[0] != before, axis=1)
    assert moved.tolist() == [i in (1, 2, 5, 7, 10) for i in range(11)]


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_a_quantized_matrix_has_a_gradient_and_its_lora_on_both_sides(mode):
    """Keras' integers stop the gradient, and its projection leaves LoRA out."""
    layer = TiedEmbedding(30, 16)
    ids = np.arange(1, 30)
    lookup = array(layer(ids))  # This builds the layer.
    layer.embedding.quantize(mode)
    layer.embedding.enable_lora(2, lora_alpha=3)
    generator = np.random.default_rng(0)
    for factor in (layer.embedding.lora_embeddings_a, layer.embedding.lora_embeddings_b):
        factor.assign(generator.normal(size=factor.shape))
    matrix = array(layer.embeddings)
    assert_close(array(layer(ids)) / 4, matrix[1:])
    assert np.abs(matrix[1:] - lookup / 4).max() > 0.1
    states = keras.Input((16,))
    dense = keras.layers.Dense(16, use_bias=False, kernel_initializer="identity")
    model = keras.Model(states, layer(dense(states), reverse=True))
    layer.trainable = False
    model.compile(keras.optimizers.SGD(1.0), lambda y, x: ops.sum(x * y), jit_compile=False)
    upstream = generator.normal(size=(16, 30)).astype("float32")
    one_hot = np.eye(16, dtype="float32")  # Then the gradient of the kernel is that of the rows.
    assert_close(model.predict(one_hot, verbose=0), matrix.T)
    model.train_on_batch(one_hot, upstream)
    gradient = one_hot - array(dense.kernel)
    assert_close(gradient, upstream @ matrix)


def test_lora_of_a_quantized_matrix_trains():
    layer = TiedEmbedding(30, 16)
    layer(np.arange(1, 30))
    layer.embedding.quantize("int8")
    layer.embedding.enable_lora(2)
    states = keras.Input((16,))
    model = keras.Model(states, layer(states, reverse=True))
    model.compile(keras.optimizers.SGD(1.0), lambda y, x: ops.sum(x * y))
    before = [array(weight) for weight in layer.embedding.trainable_weights]
    model.train_on_batch(np.eye(16, dtype="float32"), np.ones((16, 30), "float32"))
    changes = [
        np.abs(array(weight) - old).max()
        for weight, old in zip(layer.embedding.trainable_weights, before, strict=True)
    ]
    # One factor begins with zeros, so the other one has no gradient yet.
    assert len(changes) == 2 and max(changes) > 0.1
