"""Positions inside self-attention, against NumPy; cached, in a window, saved, in a model."""

import numpy as np
import pytest

from keras_transformer.layers import (
    MultiHeadAttention,
    RelativePosition,
    RotaryPosition,
    SinusoidalPositionEncoding,
)
from tests.closeness import assert_close
from tests.layers.decoding import decode
from tests.layers.oracle_parameters import array, randomize

RNG = np.random.default_rng(2)
INPUTS = RNG.normal(size=(2, 9, 8)).astype("float32")
KINDS = {"relative": lambda: RelativePosition(3), "rotary": RotaryPosition}


def attention(kind, **options):
    layer = MultiHeadAttention(2, 4, value_dim=6, position=KINDS[kind](), **options)
    layer.build(INPUTS.shape, INPUTS.shape)
    randomize(layer)
    return layer


def test_rotary_positions_turn_pairs_as_complex_numbers():
    layer = attention("rotary")
    heads = {}
    for name, dim in (("query", 4), ("key", 4), ("value", 6)):
        kernel = array(getattr(layer, f"{name}_dense").kernel)
        heads[name] = (INPUTS @ kernel).reshape(2, 9, 2, dim).transpose(0, 2, 1, 3)
    turns = np.exp(1j * np.arange(9)[:, None] * 10_000.0 ** (-np.array([0, 2]) / 4))
    queries, keys = (
        (heads[name][..., 0::2] + 1j * heads[name][..., 1::2]) * turns for name in ("query", "key")
    )
    scores = np.exp(np.einsum("bhqd,bhkd->bhqk", queries, keys.conj()).real / 2)
    scores *= np.tril(np.ones((9, 9)))
    outputs = scores / scores.sum(axis=-1, keepdims=True) @ heads["value"]
    expected = outputs.transpose(0, 2, 1, 3).reshape(2, 9, 12) @ array(layer.output_dense.kernel)
    found = layer(INPUTS, INPUTS, use_causal_mask=True)
    assert_close(array(found), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_length, window", [(None, None), (12, None), (None, 4)])
@pytest.mark.parametrize("step", [1, 3])
def test_decoding_in_steps_equals_the_whole(kind, max_length, window, step):
    layer = attention(kind, sliding_window=window)
    expected = array(layer(INPUTS, INPUTS, use_causal_mask=True))
    cache = layer.make_cache(batch_size=2, max_length=max_length)
    call = lambda new, cache, _: layer(new, new, use_causal_mask=True, cache=cache)  # noqa: E731
    outputs, _ = decode(call, INPUTS, cache, range(step, 10, step))
    assert_close(outputs, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_has_the_same_positions(kind):
    layer, dense = attention(kind, sliding_window=3), attention(kind)
    dense.set_weights(layer.get_weights())
    distance = np.abs(np.arange(9) - np.arange(9)[:, None])
    expected = dense(INPUTS, INPUTS, attention_mask=(distance < 3)[None])
    assert_close(array(layer(INPUTS, INPUTS)), array(expected))


def test_what_makes_no_sense_is_named():
    with pytest.raises(ValueError, match="must be even for rotary.*key_dim=3"):
        MultiHeadAttention(2, 3, position=RotaryPosition()).build(INPUTS.shape, INPUTS.shape)
    with pytest.raises(ValueError, match="Received: max_distance=0"):
        RelativePosition(0)
    with pytest.raises(ValueError, match="are for self-attention.*9 and 4 positions"):
        attention("rotary")(INPUTS, INPUTS[:, :4])


def test_a_shift_of_sinusoids_is_a_linear_map():
    """Section 3.5: PE(pos + k) is a linear function of PE(pos), the same for every pos."""
    encoding = array(SinusoidalPositionEncoding()(np.zeros((1, 60, 16), "float32")))[0]
    frequencies = 10_000.0 ** (-np.arange(0, 16, 2) / 16)
    for shift in (1, 5, 17):
        matrix = np.zeros((16, 16))
        for pair, angle in enumerate(shift * frequencies):
            turn = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
            matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = turn
        shifted = encoding[:-shift] @ matrix.T
        assert_close(shifted, encoding[shift:])
