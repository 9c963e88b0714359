"""A compiled search answers as the eager one, for all shapes, and sees new weights."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    Sampling,
    compile_search,
)
from tests.decoding.toy_model import ToyModel, array, assert_same

SEARCHES = [
    GreedySearch(),
    BeamSearch(3, 0.6, n_best=2),
    Sampling(num_samples=2),
    Sampling(top_k=3, top_p=0.8, seed=5),
]
SHAPES = [([1, 2, 3], [6, 4, 5], 6), ([9], [3], 9), ([5, 6, 7, 8], [7, 1, 2, 7], 7)]


def searching(model, search):
    def function(sentences, max_lengths, max_length):
        return search(model.step, model.start(sentences, search.width), max_lengths, max_length)

    return function


@pytest.mark.parametrize("search", [*SEARCHES[:2], SEARCHES[3]], ids=str)
def test_compiled_equals_eager(search):
    function = searching(ToyModel(6, seed=1), search)
    compiled = compile_search(function, sizes=("max_length",))
    for sentences, max_lengths, max_length in SHAPES:
        arrays = np.array(sentences, "int32"), np.array(max_lengths, "int32")
        result = compiled(*arrays, max_length=max_length)
        assert_same(result, function(*arrays, max_length=max_length))
        assert tuple(result.tokens.shape) == (len(sentences), result.scores.shape[1], max_length)


@pytest.mark.tensorflow_only("shapes can be unknown there alone")
@pytest.mark.parametrize("search", [Sampling(), BeamSearch(3, constraints=[MinimumLength(2)])])
def test_an_unknown_vocabulary_is_refused_where_its_size_matters(search):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def compiled(logits):
        return search(lambda *_: (logits, ()), (), tf.constant([4]), 4)

    with pytest.raises(ValueError, match="vocabulary dimension of a step's logits must be static"):
        compiled(np.zeros((search.width, 9), "float32"))


def test_variables_are_read_at_each_call():
    """What the function reads through `variables` may be trained between two calls."""
    weights = keras.Variable(np.eye(5)[[3, 3, 4, 3, 3]] * 9.0)  # BOS 2, then 4, then EOS 3

    def step(tokens, parents, state):
        return ops.take(weights, tokens, axis=0), state

    def function(max_lengths, max_length):
        return GreedySearch()(step, (), max_lengths, max_length)

    compiled = compile_search(function, [weights], sizes=("max_length",))
    limits = np.array([4], "int32")
    before = compiled(limits, max_length=4)
    assert array(before.tokens)[0, 0].tolist() == [4, 3, 0, 0]
    # On torch: nothing is kept for a gradient that no one will ask for.
    assert not getattr(before.scores, "requires_grad", False)
    weights.assign(np.eye(5)[[3, 3, 3, 3, 3]] * 9.0)
    after = compiled(limits, max_length=4)
    assert array(after.tokens)[0, 0].tolist() == [3, 0, 0, 0]


def test_a_new_seed_needs_no_new_function():
    traces = []
    search = Sampling(num_samples=4)
    model = ToyModel(30, seed=2)

    def function(sentences, seed, max_length):
        traces.append(1)
        state = model.start(sentences, search.width)
        limits = ops.zeros_like(sentences) + max_length
        return search(model.step, state, limits, max_length, seed=seed)

    compiled = compile_search(function, sizes=("max_length",))
    sentences = np.array([4, 5], "int32")
    tokens = [
        array(compiled(sentences, np.array(seed, "int32"), max_length=8).tokens)
        for seed in (1, 2, 1)
    ]
    assert np.array_equal(tokens[0], tokens[2]) and not np.array_equal(tokens[0], tokens[1])
    if keras.config.backend() != "torch":
        assert len(traces) <= 2
