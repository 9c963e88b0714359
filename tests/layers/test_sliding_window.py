"""Restricted self-attention: equal to dense attention under a band, in linear memory."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.caches import GrowingCache
from tests.closeness import assert_close
from tests.layers.decoding import decode
from tests.layers.oracle_parameters import array, randomize
from tests.precision.gradients import value_and_gradients

RNG = np.random.default_rng(5)


def pair(width=12, attention=None, **options):
    """A layer with a window, and a dense one with its weights."""
    layers = []
    for window in (options.pop("window"), None):
        function = None if attention is None else attention()
        options |= {"attention": function, "sliding_window": window}
        layers.append(MultiHeadAttention(3, 4, **options))
        layers[-1].build((None, None, width), (None, None, width))
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
@pytest.mark.parametrize("length, window", [
    (1, 1), (5, 1), (5, 2), (5, 9), (32, 8), (33, 8), (70, 8), (70, 40), (100, 34),
])  # fmt: skip
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


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("mask_rows", [0, 1])
@pytest.mark.parametrize("is_causal", [False, True])
def test_no_positions_are_no_error_with_any_mask(is_causal, mask_rows, rows):
    layer, _ = pair(window=3)
    states, mask = np.zeros((rows, 0, 12), "float32"), np.ones((rows, mask_rows, 0), bool)
    options = {"use_causal_mask": is_causal, "return_attention_scores": True}
    outputs, weights = layer(states, states, attention_mask=mask, **options)
    assert outputs.shape == (rows, 0, 12)
    assert weights.shape == (rows, 3, 0, 3 if is_causal else 5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_it_is_the_window_of_keras(is_causal):
    keras_layer = keras.layers.MultiHeadAttention(3, 4, sliding_window=6, use_bias=False)
    inputs = RNG.normal(size=(2, 40, 12)).astype("float32")
    expected = keras_layer(inputs, inputs, use_causal_mask=is_causal)
    layer, _ = pair(window=6)
    pairs = zip(keras_layer.weights, layer.weights, strict=True)
    layer.set_weights([array(kernel).reshape(ours.shape) for kernel, ours in pairs])
    outputs = layer(inputs, inputs, use_causal_mask=is_causal)
    assert_close(array(outputs), array(expected))


@pytest.mark.parametrize("step", [1, 3, 40])
@pytest.mark.parametrize("window", [1, 2, 6, 60])
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


def test_gradients_are_those_of_the_band():
    inputs = keras.Variable(RNG.normal(size=(2, 50, 12)))
    found = []
    for layer, mask in zip(pair(window=7), (None, band(50, 7)), strict=True):

        def total(layer=layer, mask=mask):
            states = ops.copy(inputs)
            return ops.sum(layer(states, states, attention_mask=mask, use_causal_mask=True) ** 2)

        found.append(value_and_gradients(total, [inputs, *layer.trainable_variables])[1])
    for gradient, expected in zip(*found, strict=True):
        assert_close(gradient, expected)


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
    assert isinstance(dense.make_cache(batch_size=2), GrowingCache)
