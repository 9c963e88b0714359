"""Attention: the oracle's outputs and weights, masks, positions, caches that change nothing."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    AdditiveAttention,
    MultiHeadAttention,
    RelativePosition,
    RotaryPosition,
    ScaledDotProductAttention,
)
from keras_transformer.layers.caches import FixedCache, GrowingCache, hypotheses_of
from tests.closeness import assert_close
from tests.layers import oracle_outputs
from tests.layers.harness import WIDEST, decode, reloaded
from tests.layers.oracle_parameters import array, randomize
from tests.precision.gradients import value_and_gradients
from tests.precision.measurements import compute_dtype, policies

RNG = np.random.default_rng(7)
POSITIONS = {
    "none": lambda: None,
    "relative": lambda: RelativePosition(3),
    "rotary": RotaryPosition,
}


def states(length, width=12, batch=2):
    return RNG.normal(size=(batch, length, width)).astype("float32")


def heads(length, dim):
    return RNG.normal(size=(2, 3, length, dim))


def attention(position="none", **options):
    layer = MultiHeadAttention(3, 4, 5, position=POSITIONS[position](), **options)
    layer.build((2, 9, 12), (2, 9, 12))
    randomize(layer)
    return layer


@pytest.mark.parametrize("mask_shape", [None, (2, 5, 7), (1, 5, 7), (2, 1, 7)])
def test_equals_equation_1(mask_shape):
    x = dict(zip(("query", "key", "value"), (heads(5, 4), heads(7, 4), heads(7, 6)), strict=True))
    if mask_shape is not None:
        x["attention_mask"] = RNG.random(mask_shape) < 0.6
    layer = ScaledDotProductAttention(dtype=WIDEST)
    results = layer(**x, return_attention_scores=True)
    if mask_shape is not None:
        x["attention_mask"] = np.broadcast_to(x["attention_mask"], (2, 5, 7))
    expected = oracle_outputs.scaled_dot_product_attention(layer, x)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(array(result), wanted, dtype=WIDEST)


def test_the_scale_of_dot_products_and_their_dropout():
    query, key, value = heads(5, 4), heads(400, 4), heads(400, 6)
    outputs = ScaledDotProductAttention(scale=0.3)(query, key, value)
    # The default is 1 / sqrt(4).
    expected = ScaledDotProductAttention()(0.6 * query, key, value)
    assert_close(array(outputs), array(expected))
    layer = ScaledDotProductAttention(dropout=0.5, seed=1)
    _, scores = layer(query, key, value, return_attention_scores=True, training=True)
    assert 0.45 < (array(scores) == 0).mean() < 0.55
    _, scores = layer(query, key, value, return_attention_scores=True)
    assert (array(scores) > 0).all()


# The first sentence has one dead row, the second none that is alive.
MASK = RNG.random((2, 5, 6)) < 0.6
MASK[0, :, 0] = True
MASK[0, 2] = False
MASK[1] = False


@pytest.mark.parametrize("policy", policies())
def test_queries_that_attend_to_nothing_give_exact_zeros_and_pass_zeros_back(policy):
    layer = ScaledDotProductAttention(dtype=policy)
    shapes = (2, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3)
    inputs = [
        keras.Variable(RNG.normal(size=shape), dtype=compute_dtype(policy)) for shape in shapes
    ]

    def outputs(**kwargs):
        return layer(*[ops.copy(one) for one in inputs], attention_mask=MASK, **kwargs)

    result, scores = (array(one) for one in outputs(return_attention_scores=True))
    # A fused kernel rounds elsewhere.
    assert_close(result, array(outputs()), policy, sum_length=4)
    for one in (result, scores):
        assert not one[0, :, 2].any() and not one[1].any()
        assert one[0, :, 0].any()
    _, gradients = value_and_gradients(lambda: ops.sum(ops.square(outputs() + 1)), inputs)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert gradient[0].any() and not gradient[1].any()
    assert not gradients[0][0, :, 2].any()


def test_outputs_and_weights_equal_the_oracles():
    layer = MultiHeadAttention(2, 3, 5, use_bias=True, dtype=WIDEST)
    x = {"query": states(5), "value": states(7, 9), "key": states(7, 4)}
    layer(**x)
    randomize(layer)
    x["attention_mask"] = RNG.random((2, 5, 7)) < 0.5
    results = layer(**x, return_attention_scores=True)
    expected = oracle_outputs.multi_head_attention(layer, x)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(array(result), wanted, dtype=WIDEST)
    assert_close(array(layer(**x)), expected[0], dtype=WIDEST)


def test_rotary_positions_turn_pairs_as_complex_numbers():
    layer, inputs, projected = attention("rotary"), states(9), {}
    for name, dim in (("query", 4), ("key", 4), ("value", 5)):
        kernel = array(getattr(layer, f"{name}_dense").kernel)
        projected[name] = (inputs @ kernel).reshape(2, 9, 3, dim).transpose(0, 2, 1, 3)
    turns = np.exp(1j * np.arange(9)[:, None] * 10_000.0 ** (-np.array([0, 2]) / 4))
    queries, keys = (
        (projected[name][..., 0::2] + 1j * projected[name][..., 1::2]) * turns
        for name in ("query", "key")
    )
    scores = np.exp(np.einsum("bhqd,bhkd->bhqk", queries, keys.conj()).real / 2)
    scores *= np.tril(np.ones((9, 9)))
    outputs = scores / scores.sum(axis=-1, keepdims=True) @ projected["value"]
    expected = outputs.transpose(0, 2, 1, 3).reshape(2, 9, 15) @ array(layer.output_dense.kernel)
    assert_close(array(layer(inputs, inputs, use_causal_mask=True)), expected)


@pytest.mark.parametrize("position", ["relative", "rotary"])
def test_a_window_has_the_same_positions(position):
    layer, dense, inputs = attention(position, sliding_window=3), attention(position), states(9)
    dense.set_weights(layer.get_weights())
    distance = np.abs(np.arange(9) - np.arange(9)[:, None])
    expected = dense(inputs, inputs, attention_mask=(distance < 3)[None])
    assert_close(array(layer(inputs, inputs)), array(expected))


@pytest.mark.parametrize("position, window, max_length, step, is_masked, policy", [
    ("none", None, None, 1, False, WIDEST),
    ("none", None, None, 3, True, WIDEST),
    ("none", None, 11, 1, True, "mixed_float16"),
    ("none", None, 11, 3, True, WIDEST),
    ("none", None, None, 9, False, WIDEST),
    ("relative", None, None, 1, False, "float32"),
    ("relative", None, 12, 3, False, "mixed_bfloat16"),
    ("relative", 4, None, 3, False, "float32"),
    ("rotary", None, None, 3, False, "float32"),
    ("rotary", None, 12, 1, False, "float32"),
    ("rotary", 4, None, 1, False, "float32"),
])  # fmt: skip
def test_decoding_in_steps_equals_the_whole(position, window, max_length, step, is_masked, policy):
    layer = attention(position, sliding_window=window, use_bias=True, dtype=policy)
    inputs = states(9)
    mask = np.tril(RNG.random((2, 9, 9)) < 0.7) if is_masked else None
    expected = layer(inputs, inputs, use_causal_mask=True, attention_mask=mask)

    def call(new, cache, stop):
        seen = None
        if is_masked:
            seen = np.zeros((2, new.shape[1], max_length or stop), bool)
            seen[:, :, :stop] = mask[:, stop - new.shape[1] : stop, :stop]
        if isinstance(cache, GrowingCache) and stop in (5, 6):  # Then it has two parts.
            cache = cache.merged()
        return layer(new, new, cache=cache, use_causal_mask=True, attention_mask=seen)

    cache = layer.make_cache(batch_size=2, max_length=max_length)
    outputs, cache = decode(call, inputs, cache, range(step, 10, step))
    assert_close(outputs, array(expected), policy)
    assert isinstance(cache, FixedCache) == (max_length is not None)
    for tensor in keras.tree.flatten((cache.keys, cache.values)):
        assert keras.backend.standardize_dtype(tensor.dtype) == layer.compute_dtype


def test_a_map_with_a_policy_of_its_own_keeps_the_dtype_of_the_cache():
    layer, inputs = attention("none", dtype="mixed_bfloat16"), states(4)
    layer.value_dense.dtype_policy = "float32"
    outputs, cache = decode(
        lambda new, cache, stop: layer(new, new, cache=cache, use_causal_mask=True),
        inputs, layer.make_cache(batch_size=2), range(1, 5),
    )  # fmt: skip
    assert_close(outputs, array(layer(inputs, inputs, use_causal_mask=True)), "mixed_bfloat16")
    for tensor in keras.tree.flatten((cache.keys, cache.values)):
        assert keras.backend.standardize_dtype(tensor.dtype) == "bfloat16"


@pytest.mark.parametrize("width, query_length", [(1, 4), (3, 1), (3, 4)])
def test_beams_of_a_sentence_share_its_keys(width, query_length):
    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    value, key, query = states(7), states(7, 5), states(query_length, batch=2 * width)
    repeated = [np.repeat(one, width, axis=0) for one in (value, key)]
    mask = np.arange(7) < np.array([[7], [4]])
    want = layer(query, *repeated, attention_mask=np.repeat(mask, width, axis=0)[:, None])
    cache = layer.make_cache(value, key)
    outputs = layer.attend_to_cache(query, cache, attention_mask=mask[:, None])
    assert_close(array(outputs), array(want), dtype=WIDEST)


def test_implicit_masks_of_value_and_key_count_and_that_of_the_query_is_passed_on():
    class Mask(keras.layers.Layer):
        def call(self, inputs):
            return inputs

        def compute_mask(self, inputs, previous_mask=None):
            return ops.not_equal(inputs[..., 0], 0)

    layer, masking = MultiHeadAttention(3, 4, dtype=WIDEST), Mask(dtype=WIDEST)
    query, value, key = states(5), states(7), states(7)
    value[0, 5:, 0] = key[1, :2, 0] = query[0, 1, 0] = 0.0
    mask = (value[..., 0] != 0) & (key[..., 0] != 0)
    outputs = layer(masking(query), masking(value), masking(key))
    want = layer(query, value, key, attention_mask=mask[:, None])
    np.testing.assert_array_equal(array(outputs), array(want))
    np.testing.assert_array_equal(array(outputs._keras_mask), query[..., 0] != 0)


def test_initial_matrices_are_glorot_of_the_papers_two_dimensional_maps():
    layer = MultiHeadAttention(8, 64)
    layer.build((None, None, 512), (None, None, 512))
    for weight in layer.weights:
        values, limit = array(weight), np.sqrt(6 / 1024)
        np.testing.assert_allclose(values.std(), limit / np.sqrt(3), rtol=0.01)
        assert limit * 0.999 < np.abs(values).max() <= limit


def test_a_model_with_another_attention_is_saved_and_decodes(tmp_path):
    inputs = keras.Input((None, 12))
    layer = MultiHeadAttention(2, 4, attention=AdditiveAttention(), name="attention")
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    randomize(model)
    loaded = reloaded(model, tmp_path)
    assert type(loaded.get_layer("attention").attention) is AdditiveAttention
    x = states(6)
    expected = array(model(x))
    np.testing.assert_array_equal(array(loaded(x)), expected)
    call = lambda new, cache, _: layer(new, new, use_causal_mask=True, cache=cache)  # noqa: E731
    outputs, _ = decode(call, x, layer.make_cache(batch_size=2), range(1, 7))
    assert_close(outputs, expected)


def test_bad_arguments_and_calls_are_explained():
    def with_additive(**options):
        return MultiHeadAttention(2, 4, attention=AdditiveAttention(), **options)

    with pytest.raises(ValueError, match="not built"):
        MultiHeadAttention(2, 6).make_cache(batch_size=2)
    layer, rotary, query = attention(), attention("rotary"), states(9)
    cache, shapes = layer.make_cache(batch_size=2), ((2, 9, 12), (2, 9, 12))
    for call, message in (
        (lambda: layer(query, query, cache=cache, return_attention_scores=True), "not both"),
        (lambda: layer(query, None, cache=cache), "`value` must be a tensor; `attend_to_cache`"),
        (lambda: rotary(query, query[:, :4]), "are for self-attention.*9 and 4 positions"),
        (lambda: MultiHeadAttention(2, 3, position=RotaryPosition()).build(*shapes), "key_dim=3"),
        (lambda: with_additive(dropout=0.1), "not allowed beside `attention`.*dropout=0.1"),
        (lambda: with_additive(flash_attention=True), "not allowed beside `attention`"),
        (lambda: with_additive(position=RelativePosition()), "adds to dot products"),
        (lambda: RelativePosition(0), "Received: max_distance=0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_hypotheses_of_sentences_lie_side_by_side():
    assert array(hypotheses_of(ops.array([2, 0]), 3)).tolist() == [6, 7, 8, 0, 1, 2]
