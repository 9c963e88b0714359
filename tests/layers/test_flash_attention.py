"""Attention by blocks: equal to the oracle, its gradient too, whatever the size of the blocks."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    MultiHeadAttention,
    RelativePosition,
    ScaledDotProductAttention,
    attention_function,
)
from keras_transformer.layers.attention_function import choose_flash_attention
from keras_transformer.layers.blockwise_attention import attend_by_blocks, attend_fused
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize
from tests.oracle import transformer as oracle

RNG = np.random.default_rng(8)


def outputs_and_gradients(function, inputs, upstream):
    """Returns what a function of the backend's tensors gives, and the gradients of its inputs."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function  # Graphs of unknown lengths are the harder case.
        def run(*inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = function(*inputs)
            return outputs, *tape.gradient(outputs, inputs, upstream)

        signature = [tf.TensorSpec((None, 2, None, one.shape[-1])) for one in inputs]
        found = run.get_concrete_function(*signature)(*map(tf.constant, inputs))
    elif backend == "jax":
        import jax

        outputs, pull_back = jax.vjp(jax.jit(function), *inputs)
        found = outputs, *pull_back(upstream)
    else:
        import torch

        inputs = [torch.tensor(one, requires_grad=True) for one in inputs]
        outputs = function(*inputs)
        outputs.backward(torch.tensor(upstream))
        found = outputs.detach(), *(one.grad for one in inputs)
    return list(map(array, found))


def expected(query, key, value, mask, upstream):
    """The oracle's outputs and gradients, one sentence and one head at a time."""
    found = [np.zeros(one.shape) for one in (upstream, query, key, value)]
    for row, head in np.ndindex(query.shape[:2]):
        heads = query[row, head], key[row, head], value[row, head]
        found[0][row, head] = oracle.attention(*heads, mask[row])[0]
        gradients = oracle.attention_backward(*heads, mask[row], upstream[row, head])
        for one, gradient in zip(found[1:], gradients, strict=True):
            one[row, head] = gradient
    return found


def attend_to_all_scores(query, key, value, mask, is_causal):
    layer = ScaledDotProductAttention(scale=1.0, flash_attention=False)
    options = {"use_causal_mask": is_causal, "training": True}
    return layer(query, key, value, attention_mask=mask, **options)


MASKS = {
    "none": lambda queries, keys: None,
    "padding": lambda queries, keys: np.arange(keys) < np.array([[[keys - 2]], [[0]]]),
    "shared": lambda queries, keys: RNG.random((1, queries, keys)) < 0.4,
    "of each query": lambda queries, keys: RNG.random((2, queries, keys)) < 0.4,
}


@pytest.mark.parametrize("attend, size, queries, keys, is_causal, kind", [
    (attend_by_blocks, 4, 10, 10, True, "none"),
    (attend_by_blocks, 4, 7, 19, False, "padding"),
    (attend_by_blocks, 4, 13, 13, True, "of each query"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (attend_by_blocks, 4, 7, 19, False, "shared"),
        (attend_by_blocks, 512, 3, 3, True, "padding"),
        (attend_by_blocks, 4, 1, 9, False, "none"))),
    (attend_fused, None, 10, 10, True, "none"),
    (attend_fused, None, 10, 10, True, "padding"),
    (attend_fused, None, 7, 19, False, "of each query"),
    (attend_to_all_scores, None, 7, 19, False, "padding"),
    (attend_to_all_scores, None, 13, 13, True, "of each query"),
])  # fmt: skip
def test_it_is_the_attention_of_the_oracle(attend, size, queries, keys, is_causal, kind):
    width = 6 if attend is attend_by_blocks else 4  # The kernel of JAX needs equal widths.
    shapes = (2, 2, queries, 4), (2, 2, keys, 4), (2, 2, keys, width), (2, 2, queries, width)
    *inputs, upstream = (RNG.normal(size=shape).astype("float32") for shape in shapes)
    mask, options = MASKS[kind](queries, keys), {} if size is None else {"size": size}

    def function(query, key, value):
        return attend(query * 0.5, key, value, mask, is_causal, **options)  # 1 / sqrt(4)

    visible = np.tril(np.ones((queries, keys), bool), 0 if is_causal else keys)
    visible = np.broadcast_to(visible if mask is None else visible & mask, (2, queries, keys))
    found = outputs_and_gradients(function, inputs, upstream)
    for one, other in zip(found, expected(*inputs, visible, upstream), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_layer_has_the_same_outputs_with_it(dtype):
    layers = [MultiHeadAttention(2, 4, flash_attention=flag, dtype=dtype) for flag in (True, False)]
    inputs = ops.convert_to_tensor(RNG.normal(size=(2, 9, 8)).astype("float32"))
    for layer in layers:
        layer.build(inputs.shape, inputs.shape)
        randomize(layer)
    options = {"attention_mask": MASKS["padding"](9, 9), "use_causal_mask": True}
    found, other = (ops.cast(layer(inputs, inputs, **options), "float32") for layer in layers)
    assert_close(array(found), array(other), dtype)


@pytest.mark.parametrize("setting, queries, keys, kernel", [
    (None, 64, 64, True), (None, 32, 128, True), (None, 62, 64, False), (None, 1, 512, False),
    (None, 65, 64, False), (None, 64, "unknown", False), (True, 7, 9, True), (True, 9, "any", True),
])  # fmt: skip
def test_jax_uses_its_kernel_where_it_is_faster(monkeypatch, setting, queries, keys, kernel):
    monkeypatch.setattr(attention_function, "_has_fused", lambda key, value: True)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    query, key = (SimpleNamespace(shape=(2, 8, length, 64)) for length in (queries, keys))
    found = choose_flash_attention(setting, None, query, key, key, np.ones((2, 1, 1), bool))
    assert found is (attend_fused if kernel else None)


@pytest.mark.parametrize("setting, training, device, length, kernel", [
    (None, True, "cpu", 127, False), (None, True, "cpu", 128, True), (None, False, "cpu", 9, True),
    (None, True, "cuda", 9, True), (True, True, "cpu", 9, True),
])  # fmt: skip
def test_torch_trains_with_its_kernel_where_it_is_faster(
    monkeypatch, setting, training, device, length, kernel
):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    query = SimpleNamespace(shape=(2, 8, length, 64), device=SimpleNamespace(type=device))
    found = choose_flash_attention(setting, training, query, query, query, None)
    assert found is (attend_fused if kernel else None)


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_asks_for_the_kernel_of_its_phase(monkeypatch, training):
    asked = []
    monkeypatch.setattr(
        attention_function, "choose_flash_attention", lambda *args: asked.append(args[:2])
    )
    states = np.ones((2, 5, 8), "float32")
    MultiHeadAttention(2, 4)(states, states, training=training)
    assert asked[-1] == (None, training)


LONG, SHORT = np.zeros((1, 1, 4096, 1)), np.zeros((1, 1, 8, 1))


@pytest.mark.parametrize("setting, query, is_allowed, blocks", [
    (None, SHORT, True, False), (None, LONG, True, True), (None, LONG, False, False),
    (True, SHORT, True, True), (True, SHORT, False, True), (False, LONG, True, False),
])  # fmt: skip
def test_the_setting_decides(setting, query, is_allowed, blocks):
    mask = np.ones((1, 1, query.shape[2]), bool)
    try:
        if not is_allowed:
            keras.config.disable_flash_attention()
        found = choose_flash_attention(setting, None, query, query, query, mask)
    finally:
        keras.config.enable_flash_attention()
    if keras.backend.backend() == "torch" and (setting or setting is None and is_allowed):
        assert found is (attend_by_blocks if query is LONG else attend_fused)
    else:
        assert found is (attend_by_blocks if blocks else None)


def test_what_it_cannot_do_is_named():
    with pytest.raises(ValueError, match="not supported with dropout.*Received: dropout=0.1"):
        MultiHeadAttention(2, 4, dropout=0.1, flash_attention=True)
    with pytest.raises(ValueError, match="Received: flash_attention=1"):
        MultiHeadAttention(2, 4, flash_attention=1)
    states = np.zeros((1, 3, 8), "float32")
    layer = MultiHeadAttention(2, 4, flash_attention=True, position=RelativePosition())
    with pytest.raises(ValueError, match="not supported with relative positions"):
        layer(states, states)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX has a forward mode")
def test_outputs_have_forward_derivatives():
    import jax

    layer = MultiHeadAttention(2, 4)
    inputs, tangent = (RNG.normal(size=(2, 5, 8)).astype("float32") for _ in range(2))
    layer.build(inputs.shape, inputs.shape)
    _, found = jax.jvp(lambda states: layer(states, states), (inputs,), (tangent,))
    near, far = (layer(inputs + s * tangent, inputs + s * tangent) for s in (-1e-2, 1e-2))
    np.testing.assert_allclose(found, (far - near) / 2e-2, atol=1e-2)
