"""Multi-head attention: equals the oracle, three return forms, caches that change nothing."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.caches import FixedCache
from tests.layers.oracle_parameters import array, attention_parameters, randomize
from tests.layers.widest_float import FLOAT64, WIDEST, within
from tests.oracle import transformer as oracle

RNG = np.random.default_rng(7)


def states(length, width=12, batch=2):
    return RNG.normal(size=(batch, length, width)).astype("float32")


def expected(layer, query, value, key=None, mask=None):
    params = attention_parameters(layer)
    rows = [
        oracle.multi_head_attention(
            params,
            layer.num_heads,
            query[i],
            value[i],
            None if key is None else key[i],
            None if mask is None else np.broadcast_to(mask, (2, *mask.shape[1:]))[i],
        )
        for i in range(len(query))
    ]
    return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])


@pytest.mark.parametrize("num_heads,key_dim,value_dim", [(1, 12, None), (3, 4, None), (2, 3, 5)])
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_the_oracle(num_heads, key_dim, value_dim, use_bias):
    layer = MultiHeadAttention(num_heads, key_dim, value_dim, use_bias, dtype=WIDEST)
    query, value, key = states(5), states(7, 9), states(7, 4)
    layer(query, value, key)
    randomize(layer)
    mask = RNG.random((2, 5, 7)) < 0.5
    mask[0, 2] = False
    outputs, scores = layer(query, value, key, attention_mask=mask, return_attention_scores=True)
    want = expected(layer, query, value, key, mask)
    np.testing.assert_allclose(array(outputs), want[0], atol=within(1e-12))
    np.testing.assert_allclose(array(scores), want[1], atol=within(1e-13))
    again = layer(query, value, key, attention_mask=mask)
    np.testing.assert_allclose(array(again), array(outputs), atol=within(1e-12))


def test_causal_mask_equals_the_oracle_and_combines_with_others():
    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    query = states(6)
    mask = RNG.random((2, 6, 6)) < 0.7
    outputs = layer(query, query, attention_mask=mask, use_causal_mask=True)
    want, _ = expected(layer, query, query, mask=mask & oracle.causal_mask(6))
    np.testing.assert_allclose(array(outputs), want, atol=within(1e-12))


@pytest.mark.parametrize("policy", [FLOAT64, "float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("dropout,with_scores", [(0.0, True), (0.3, False), (0.3, True)])
def test_causality_whatever_else_is_asked_for(policy, dropout, with_scores):
    """No output before position 4 depends on position 4 or later."""
    layer = MultiHeadAttention(2, 6, dropout=dropout, seed=1, dtype=policy)
    one = states(7)
    other = np.concatenate([one[:, :4], 10 * states(3)], axis=1)
    padding = (np.arange(7) < np.array([[7], [6]]))[:, None]
    layer(one, one)
    outputs = []
    for inputs in (one, other):
        if dropout:
            layer.attention.dropout_layer.seed_generator.state.assign([1, 0])
        result = layer(
            inputs,
            inputs,
            attention_mask=padding,
            use_causal_mask=True,
            return_attention_scores=with_scores,
            training=True,
        )
        if with_scores:
            result, scores = result
            assert not np.triu(array(scores), 1).any()
        outputs.append(array(result))
    np.testing.assert_array_equal(outputs[0][:, :4], outputs[1][:, :4])
    assert np.abs(outputs[0][:, 4:] - outputs[1][:, 4:]).max() > 0.1


def decode(layer, inputs, cache, cuts, mask=None):
    """Feed `inputs` in pieces that end at `cuts`."""
    outputs, start = [], 0
    for cut in cuts:
        piece, seen = inputs[:, start:cut], None
        if mask is not None:
            key_length = cache.keys.shape[2] if isinstance(cache, FixedCache) else cut
            seen = np.zeros((len(inputs), cut - start, key_length), bool)
            seen[:, :, :cut] = mask[:, start:cut, :cut]
        result, cache = layer(piece, piece, cache=cache, use_causal_mask=True, attention_mask=seen)
        outputs.append(array(result))
        start = cut
    return np.concatenate(outputs, axis=1), cache


@pytest.mark.parametrize(
    "policy,atol,cuts,masked",
    [
        (WIDEST, within(1e-13), range(1, 9), False),
        (WIDEST, within(1e-13), [3, 4, 8], True),
        (WIDEST, within(1e-13), [8], False),
        ("mixed_float16", 5e-3, [3, 4, 8], True),
    ],
)
@pytest.mark.parametrize("max_length", [None, 8, 11])
def test_cached_equals_uncached(policy, atol, max_length, cuts, masked):
    layer = MultiHeadAttention(3, 4, 5, use_bias=True, dtype=policy)
    inputs = states(8)
    mask = np.tril(RNG.random((2, 8, 8)) < 0.7) if masked else None
    full = layer(inputs, inputs, use_causal_mask=True, attention_mask=mask)
    randomize(layer)
    full = layer(inputs, inputs, use_causal_mask=True, attention_mask=mask)
    cache = layer.make_cache(batch_size=2, max_length=max_length)
    outputs, cache = decode(layer, inputs, cache, cuts, mask)
    np.testing.assert_allclose(outputs, array(full), atol=atol)
    assert isinstance(cache, FixedCache) == (max_length is not None)
    parts = zip(cache.keys, cache.values, strict=True) if max_length is None else [cache[:2]]
    shapes = [(keys.shape, values.shape) for keys, values in parts]
    assert sum(keys[2] for keys, _ in shapes) == (max_length or 8)
    for keys, values in shapes:
        assert (tuple(keys), tuple(values)) == ((2, 3, keys[2], 4), (2, 3, keys[2], 5))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("query_length", [1, 4])
def test_rows_of_one_sentence_share_its_keys(width, query_length):
    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    source, query = states(7), states(query_length, batch=2 * width)
    repeated = np.repeat(source, width, axis=0)
    mask = np.arange(7) < np.array([[7], [4]])
    want = layer(query, repeated, attention_mask=np.repeat(mask, width, axis=0)[:, None])
    cache = layer.make_cache(source)
    outputs, again = layer(query, None, cache=cache, attention_mask=mask[:, None])
    np.testing.assert_allclose(array(outputs), array(want), atol=within(1e-13))
    assert all(one is other for one, other in zip(again, cache, strict=True))


def test_a_cache_of_values_with_keys_of_their_own():
    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    query, value, key = states(2), states(7), states(7, 5)
    want = layer(query, value, key)
    outputs, _ = layer(query, None, cache=layer.make_cache(value, key))
    np.testing.assert_allclose(array(outputs), array(want), atol=within(1e-13))


def test_there_are_three_return_forms():
    layer = MultiHeadAttention(3, 4)
    query = states(5)
    assert layer(query, query).shape == (2, 5, 12)
    outputs, scores = layer(query, query, return_attention_scores=True)
    assert outputs.shape == (2, 5, 12) and scores.shape == (2, 3, 5, 5)
    outputs, cache = layer(query, query, cache=layer.make_cache(batch_size=2))
    assert outputs.shape == (2, 5, 12) and cache.length == 5


def test_symbolic_cross_attention_declares_its_scores_by_the_keys():
    query, value = keras.KerasTensor((2, 5, 12)), keras.KerasTensor((2, 7, 9))
    outputs, scores = MultiHeadAttention(3, 4)(query, value, return_attention_scores=True)
    assert outputs.shape == (2, 5, 12) and scores.shape == (2, 3, 5, 7)


def test_implicit_masks_of_value_and_key_are_honored_and_that_of_the_query_passed_on():
    class Mask(keras.layers.Layer):
        def call(self, inputs):
            return inputs

        def compute_mask(self, inputs, previous_mask=None):
            return ops.not_equal(inputs[..., 0], 0)

    layer = MultiHeadAttention(3, 4, dtype=WIDEST)
    query, value, key = states(5), states(7), states(7)
    value[0, 5:, 0] = 0.0
    key[1, :2, 0] = 0.0
    query[0, 1, 0] = 0.0
    mask = (value[..., 0] != 0) & (key[..., 0] != 0)
    masking = Mask(dtype=WIDEST)
    outputs = layer(masking(query), masking(value), masking(key))
    want = layer(query, value, key, attention_mask=mask[:, None])
    np.testing.assert_array_equal(array(outputs), array(want))
    np.testing.assert_array_equal(array(outputs._keras_mask), query[..., 0] != 0)


@pytest.mark.parametrize(
    "policy",
    [
        "float32",
        "mixed_float16",
        pytest.param(*FLOAT64.values, marks=[*FLOAT64.marks, pytest.mark.slow]),
        pytest.param("mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_dead_rows_are_zero_and_their_training_step_is_finite(policy):
    inputs = keras.Input((4, 8))
    mask = keras.Input((4, 4), dtype="bool")
    layer = MultiHeadAttention(2, 4, dropout=0.1, dtype=policy)
    model = keras.Model([inputs, mask], layer(inputs, inputs, attention_mask=mask))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    data = [RNG.normal(size=(3, 4, 8)).astype("float32"), np.zeros((3, 4, 4), bool)]
    data[1][0] = True
    assert not array(model(data))[1:].any()
    assert np.isfinite(model.train_on_batch(data, np.ones((3, 4, 8), "float32")))
    assert all(np.isfinite(weight).all() for weight in layer.get_weights())


@pytest.mark.parametrize("width,heads", [(512, 8), (512, 1), (1024, 16)])
def test_initial_matrices_are_glorot_of_the_papers_two_dimensional_maps(width, heads):
    layer = MultiHeadAttention(heads, width // heads)
    layer.build((None, None, width), (None, None, width))
    for weight in layer.weights:
        values = array(weight)
        limit = np.sqrt(6 / (width + width))
        np.testing.assert_allclose(values.std(), np.sqrt(2 / (width + width)), rtol=0.01)
        assert limit * 0.999 < np.abs(values).max() <= limit


def test_a_seeded_initializer_gives_four_different_reproducible_matrices():
    def matrices(initializer, **kwargs):
        layer = MultiHeadAttention(2, 6, kernel_initializer=initializer, **kwargs)
        layer.build((None, None, 12), (None, None, 12))
        return layer.get_weights()

    for initializer in (
        lambda: keras.initializers.GlorotUniform(seed=3),
        lambda: keras.initializers.GlorotUniform(),
        lambda: keras.initializers.GlorotUniform(keras.random.SeedGenerator(3)),
        lambda: "glorot_uniform",
    ):
        weights = matrices(initializer())
        for i in range(4):
            for j in range(i):
                assert not np.array_equal(weights[i], weights[j])
    seeded = [matrices(keras.initializers.GlorotUniform(seed=3)) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0], seeded[1])


def test_biases_of_a_random_initializer_differ():
    layer = MultiHeadAttention(2, 6, use_bias=True, bias_initializer="random_normal")
    layer.build((None, None, 12), (None, None, 12))
    assert not np.array_equal(array(layer.query_dense.bias), array(layer.key_dense.bias))


def test_an_initializer_may_be_a_function():
    layer = MultiHeadAttention(2, 6, kernel_initializer=lambda shape, dtype: ops.ones(shape, dtype))
    layer.build((None, None, 12), (None, None, 12))
    assert (array(layer.query_dense.kernel) == 1).all()


def test_bad_calls_are_explained():
    layer = MultiHeadAttention(2, 6)
    query = states(2)
    with pytest.raises(ValueError, match="not built"):
        layer.make_cache(batch_size=2)
    layer(query, query)
    cache = layer.make_cache(batch_size=2)
    with pytest.raises(ValueError, match="scores or a cache, not both"):
        layer(query, query, cache=cache, return_attention_scores=True)
    with pytest.raises(ValueError, match="only with a cache"):
        layer(query, None)
    with pytest.raises(ValueError, match="use_causal_mask=True, value=None"):
        layer(query, None, cache=layer.make_cache(query), use_causal_mask=True)


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 2, 2)])
def test_a_mask_of_another_rank_is_refused(shape):
    """Two rows, heads and positions: it would broadcast without a word."""
    query = states(2)
    with pytest.raises(ValueError, match="attention_mask of shape"):
        MultiHeadAttention(2, 6)(query, query, attention_mask=np.ones(shape, bool))
