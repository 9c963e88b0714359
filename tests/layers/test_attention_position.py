"""Positions inside self-attention, against NumPy; cached, in a window, saved, in a model."""

import keras
import numpy as np
import pytest

from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.layers import (
    MultiHeadAttention,
    RelativePosition,
    RotaryPosition,
    SinusoidalPositionEncoding,
)
from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.settings.transformer_config import count_parameters
from tests.layers.oracle_parameters import array, randomize

RNG = np.random.default_rng(2)
INPUTS = RNG.normal(size=(2, 9, 8)).astype("float32")
KINDS = {"relative": lambda: RelativePosition(3), "rotary": RotaryPosition}


def attention(kind, **options):
    layer = MultiHeadAttention(2, 4, value_dim=6, position=KINDS[kind](), **options)
    layer.build(INPUTS.shape, INPUTS.shape)
    randomize(layer)
    return layer


def heads(layer, name, dim):
    kernel = array(getattr(layer, f"{name}_dense").kernel)
    return (INPUTS @ kernel).reshape(2, 9, 2, dim).transpose(0, 2, 1, 3)


def softmax(scores):
    scores = np.where(np.tril(np.ones((9, 9), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def merged(layer, outputs):
    return outputs.transpose(0, 2, 1, 3).reshape(2, 9, 12) @ array(layer.output_dense.kernel)


def test_relative_positions_equal_the_formulas_of_the_paper():
    """Shaw et al. (2018), equations 3 and 4, written as loops."""
    layer = attention("relative")
    queries, keys, values = (heads(layer, *one) for one in (("query", 4), ("key", 4), ("value", 6)))
    key_vectors, value_vectors = map(array, layer.position.weights)
    scores, outputs = np.zeros((2, 2, 9, 9)), np.zeros((2, 2, 9, 6))
    row = lambda i, j: min(max(j - i, -3), 3) + 3  # noqa: E731
    for i in range(9):
        for j in range(9):
            key = keys[:, :, j] + key_vectors[row(i, j)]
            scores[:, :, i, j] = (queries[:, :, i] * key).sum(-1) / 2
    weights = softmax(scores)
    for i in range(9):
        for j in range(9):
            value = values[:, :, j] + value_vectors[row(i, j)]
            outputs[:, :, i] += weights[:, :, i, j, None] * value
    found = layer(INPUTS, INPUTS, use_causal_mask=True)
    np.testing.assert_allclose(array(found), merged(layer, outputs), atol=1e-5)


def test_rotary_positions_turn_pairs_as_complex_numbers():
    layer = attention("rotary")
    queries, keys, values = (heads(layer, *one) for one in (("query", 4), ("key", 4), ("value", 6)))
    turns = np.exp(1j * np.arange(9)[:, None] * 10_000.0 ** (-np.array([0, 2]) / 4))
    queries, keys = ((one[..., 0::2] + 1j * one[..., 1::2]) * turns for one in (queries, keys))
    scores = np.einsum("bhqd,bhkd->bhqk", queries, keys.conj()).real / 2
    found = layer(INPUTS, INPUTS, use_causal_mask=True)
    np.testing.assert_allclose(array(found), merged(layer, softmax(scores) @ values), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_length, window", [(None, None), (12, None), (None, 4)])
@pytest.mark.parametrize("step", [1, 3])
def test_decoding_in_steps_equals_the_whole(kind, max_length, window, step):
    layer = attention(kind, sliding_window=window)
    expected = array(layer(INPUTS, INPUTS, use_causal_mask=True))
    cache, outputs = layer.make_cache(batch_size=2, max_length=max_length), []
    for start in range(0, 9, step):
        part = INPUTS[:, start : start + step]
        found, cache = layer(part, part, use_causal_mask=True, cache=cache)
        outputs.append(array(found))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_has_the_same_positions(kind):
    layer, dense = attention(kind, sliding_window=3), attention(kind)
    dense.set_weights(layer.get_weights())
    distance = np.abs(np.arange(9) - np.arange(9)[:, None])
    expected = dense(INPUTS, INPUTS, attention_mask=(distance < 3)[None])
    np.testing.assert_allclose(array(layer(INPUTS, INPUTS)), array(expected), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_has_them_and_is_saved(kind, tmp_path):
    config = TransformerConfig(
        vocab_size=12, num_encoder_layers=1, num_decoder_layers=1, d_model=8, intermediate_dim=12,
        num_heads=2, position=kind, max_distance=3, sliding_window=4,
    )  # fmt: skip
    model = Transformer(config)
    assert model.count_params() == count_parameters(config)
    ids = {name: RNG.integers(1, 12, (2, 7)).astype("int32") for name in ("source", "target")}
    randomize(model)
    expected = array(model(ids))
    # No position is added to the embedding, and all are told apart.
    assert model.encoder.position is None
    other = {**ids, "source": ids["source"][:, ::-1].copy()}
    assert np.abs(array(model(other)) - expected).max() > 1e-3
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(loaded(ids)), expected)


def test_what_makes_no_sense_is_named():
    with pytest.raises(ValueError, match="must be even for rotary.*key_dim=3"):
        MultiHeadAttention(2, 3, position=RotaryPosition()).build(INPUTS.shape, INPUTS.shape)
    with pytest.raises(ValueError, match="Received: max_distance=0"):
        RelativePosition(0)
    with pytest.raises(ValueError, match="`position` must be an `AttentionPosition`.*'rotary'"):
        MultiHeadAttention(2, 4, position="rotary")
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
        np.testing.assert_allclose(shifted, encoding[shift:], atol=1e-5)


@pytest.mark.parametrize("settings", [
    {"position": "rotary", "sliding_window": 3},
    pytest.param({"position": "relative", "max_distance": 3}, marks=pytest.mark.slow),
    pytest.param({"position": "rotary"}, marks=pytest.mark.slow),
    pytest.param({"sliding_window": 3}, marks=pytest.mark.slow),
], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    "search",
    [pytest.param(GreedySearch(), marks=pytest.mark.slow), BeamSearch(3, n_best=3)],
    ids=str,
)
def test_a_search_has_the_log_probabilities_of_the_whole_model(settings, search):
    config = TransformerConfig(
        vocab_size=12, num_encoder_layers=1, num_decoder_layers=1, d_model=8, intermediate_dim=12,
        num_heads=2, **settings,
    )  # fmt: skip
    model = Transformer(config)
    randomize(model)
    source = RNG.integers(4, 12, (4, 6)).astype("int32")
    found = search(
        model.decode_step, model.start_decoding(source, search.width, 9), max_lengths=[9, 5, 7, 9],
        max_length=9, keep_sentences=model.keep_sentences,
    )  # fmt: skip
    tokens, lengths = array(found.tokens), array(found.lengths)
    log_probabilities = array(found.log_probabilities)
    for row in range(4):
        for n in range(tokens.shape[1]):
            answer = tokens[row, n, : int(lengths[row, n])].astype(int)
            target = np.array([[2, *answer[:-1]]], "int32")
            logits = array(model({"source": source[row : row + 1], "target": target}))[0]
            logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            total = logits[np.arange(len(answer)), answer].sum()
            assert log_probabilities[row, n] == pytest.approx(total, abs=1e-3)
