"""Attention by blocks and in a window: equal to the oracle or to a band, with linear memory."""

import subprocess
import sys
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
from tests.layers.harness import decode
from tests.layers.oracle_parameters import array, randomize
from tests.oracle import transformer as oracle
from tests.precision.gradients import value_and_gradients

RNG = np.random.default_rng(8)


def with_unknown_lengths(function, inputs):
    """On TensorFlow the function becomes a graph of unknown lengths, which is the harder case."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    signature = [tf.TensorSpec((None, 2, None, one.shape[-1])) for one in inputs]
    return tf.function(function, input_signature=signature)


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
    "of each query": lambda queries, keys: RNG.random((2, queries, keys)) < 0.4,
}


@pytest.mark.parametrize("attend, size, queries, keys, is_causal, kind", [
    (attend_by_blocks, 4, 10, 10, True, "none"),
    (attend_by_blocks, 4, 7, 19, False, "padding"),
    (attend_by_blocks, 4, 7, 10, False, "none"),
    (attend_by_blocks, 4, 13, 13, True, "of each query"),
    (attend_fused, None, 10, 10, True, "none"),
    (attend_fused, None, 10, 10, True, "padding"),
    (attend_fused, None, 7, 19, False, "of each query"),
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
    variables = list(map(keras.Variable, inputs))
    attention = with_unknown_lengths(function, inputs)

    def outputs():
        return attention(*[variable.value for variable in variables])

    _, gradients = value_and_gradients(
        lambda: ops.sum(ops.multiply(outputs(), upstream)), variables
    )
    found = [array(outputs()), *gradients]
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


FUSED, BLOCKS = attend_fused, attend_by_blocks


@pytest.mark.parametrize("backend, setting, training, device, queries, keys, expected", [
    ("jax", None, None, "gpu", 64, 64, FUSED), ("jax", None, None, "gpu", 32, 128, FUSED),
    ("jax", None, None, "gpu", 62, 64, None), ("jax", None, None, "gpu", 65, 64, None),
    ("jax", None, None, "gpu", 64, "any", None), ("jax", True, None, "gpu", 9, "any", FUSED),
    ("jax", None, None, "gpu", 4096, 4096, BLOCKS),  # with a mask
    ("torch", None, True, "cpu", 127, 127, None), ("torch", None, True, "cpu", 128, 128, FUSED),
    ("torch", None, False, "cpu", 9, 9, FUSED), ("torch", None, True, "cuda", 9, 9, FUSED),
    ("torch", True, True, "cpu", 9, 9, FUSED), ("torch", False, True, "cuda", 9, 9, None),
    ("tensorflow", None, None, "cpu", 8, 8, None), ("tensorflow", True, None, "cpu", 8, 8, BLOCKS),
    ("tensorflow", None, None, "cpu", 4096, 4096, BLOCKS),
    ("tensorflow", False, None, "cpu", 4096, 4096, None),
])  # fmt: skip
def test_what_avoids_the_scores_is_used_where_it_is_faster(
    monkeypatch, backend, setting, training, device, queries, keys, expected
):
    monkeypatch.setattr(attention_function, "_has_fused", lambda *_: backend != "tensorflow")
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    query, key = (
        SimpleNamespace(shape=(2, 8, length, 64), device=SimpleNamespace(type=device))
        for length in (queries, keys)
    )
    states, mask = (query, key, key), np.ones((2, 1, 1), bool)
    assert choose_flash_attention(setting, training, *states, mask) is expected
    monkeypatch.setattr(keras.config, "is_flash_attention_enabled", lambda: False)
    assert setting is not None or choose_flash_attention(None, training, *states, mask) is None


def test_a_prompt_that_is_read_into_a_cache_needs_no_scores(monkeypatch):
    layer = MultiHeadAttention(2, 4, flash_attention=True)
    inputs = keras.random.normal((1, 5, 8))
    want = array(layer(inputs, inputs, use_causal_mask=True))
    cache = layer.make_cache(batch_size=1)
    monkeypatch.setattr("keras_transformer.layers.backend_operations.softmax", None)
    found, _ = layer(inputs, inputs, use_causal_mask=True, cache=cache)
    assert_close(array(found), want)


def test_what_it_cannot_do_is_named():
    with pytest.raises(ValueError, match="not supported with dropout.*Received: dropout=0.1"):
        MultiHeadAttention(2, 4, dropout=0.1, flash_attention=True)
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


def pair(window):
    """A layer with a window, and a dense one with its weights."""
    layers = [MultiHeadAttention(3, 4, sliding_window=one) for one in (window, None)]
    for layer in layers:
        layer.build((None, None, 12), (None, None, 12))
    randomize(layers[0])
    layers[1].set_weights(layers[0].get_weights())
    return layers


def band(length, window):
    positions = np.arange(length)
    return (np.abs(positions - positions[:, None]) < window)[None]


def masks(length):
    """No mask, padding, and a mask of every query."""
    lengths = np.array([[length], [max(length - 3, 1)]])
    return [None, (np.arange(length) < lengths)[:, None], RNG.random((2, length, length)) < 0.7]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length, window", [(1, 1), (5, 2), (5, 9), (33, 8), (70, 40)])
def test_it_is_dense_attention_under_a_band(length, window, is_causal):
    layer, dense = pair(window=window)
    inputs = RNG.normal(size=(2, length, 12)).astype("float32")
    options = {"use_causal_mask": is_causal, "return_attention_scores": True}
    for mask in masks(length):
        outputs, weights = layer(inputs, inputs, attention_mask=mask, **options)
        whole = band(length, window) if mask is None else band(length, window) & mask
        expected, scores = map(array, dense(inputs, inputs, attention_mask=whole, **options))
        assert_close(array(outputs), expected)
        # Column r of the band is key i - (window - 1) + r.
        width = window if is_causal else 2 * window - 1
        padded = np.pad(scores, ((0, 0), (0, 0), (0, 0), (window - 1, window - 1)))
        rows = [padded[:, :, i, i : i + width] for i in range(length)]
        assert_close(array(weights), np.stack(rows, axis=2))


def test_a_window_wider_than_the_sequence_attends_to_all():
    layer, dense = pair(window=1_000_000)
    inputs = RNG.normal(size=(2, 40, 12)).astype("float32")
    model_inputs = keras.Input((None, 12))
    model = keras.Model(model_inputs, layer(model_inputs, model_inputs))
    for found in (layer(inputs, inputs), model(inputs)):
        assert_close(array(found), array(dense(inputs, inputs)))


@pytest.mark.parametrize("step, window", [(1, 1), (1, 6), (3, 2), (3, 60), (40, 6)])
def test_a_rolling_cache_gives_the_outputs_of_the_whole(window, step):
    layer, _ = pair(window=window)
    inputs = RNG.normal(size=(2, 40, 12)).astype("float32")
    mask = masks(40)[1]
    expected = layer(inputs, inputs, attention_mask=mask, use_causal_mask=True)

    def call(new, cache, stop):
        assert cache.keys.shape[2] == window - 1
        options = {"attention_mask": mask[:, :, :stop], "use_causal_mask": True}
        return layer(new, new, cache=cache, **options)

    stops = [*range(step, 40, step), 40]
    outputs, cache = decode(call, inputs, layer.make_cache(batch_size=2), stops)
    assert cache.keys.shape[2] == window - 1
    assert_close(outputs, array(expected))


@pytest.mark.slow
@pytest.mark.tensorflow_only("the memory of its process")
@pytest.mark.parametrize("heads, options", [(8, "sliding_window=64"), (1, "flash_attention=True")])
def test_32768_positions_forward_and_backward_in_4_gb(heads, options):
    """The scores of a head are 4.3 GB."""
    program = f"""
import resource
import numpy as np, tensorflow as tf
from keras_transformer.layers import MultiHeadAttention

layer = MultiHeadAttention({heads}, 64, {options})
inputs = tf.random.normal((1, 32_768, 512))

@tf.function
def step(inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(layer(inputs, inputs, use_causal_mask=True) ** 2)
    return tape.gradient(loss, inputs)

assert np.isfinite(step(inputs).numpy()).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 4.0


def test_there_is_no_window_in_cross_attention():
    layer, dense = pair(window=4)
    states = np.zeros((2, 5, 12), "float32")
    with pytest.raises(ValueError, match="self-attention.*5 and 3 positions"):
        layer(states, states[:, :3])
    with pytest.raises(ValueError, match="for self-attention"):
        layer.attend_to_cache(states, dense.make_cache(states))
    with pytest.raises(ValueError, match="self-attention.*GrowingCache as cache"):
        layer(states, states, cache=dense.make_cache(batch_size=2))


@pytest.mark.tensorflow_only("graphs with unknown sizes are TensorFlow's")
@pytest.mark.parametrize("options", [{"sliding_window": 3}, {"flash_attention": True}])
def test_one_row_of_a_mask_is_for_all_queries_also_if_its_size_is_unknown(options):
    import tensorflow as tf

    layer = MultiHeadAttention(2, 4, **options)
    inputs = RNG.normal(size=(2, 5, 8)).astype("float32")
    mask = np.array([[[True, True, True, False, False]], [[True, True, True, True, False]]])
    expected = array(layer(inputs, inputs, attention_mask=mask))
    unknown = [tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None, None), tf.bool)]
    function = tf.function(lambda x, m: layer(x, x, attention_mask=m), input_signature=unknown)
    assert_close(array(function(inputs, mask)), expected)
