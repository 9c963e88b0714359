"""Greedy search == a plain Python loop."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import GreedySearch
from tests.decoding.toy_model import EOS, ToyModel, assert_same_hypotheses, hypotheses
from tests.oracle import search as oracle


@pytest.mark.parametrize("vocabulary", [4, 7, 50])
def test_greedy_equals_a_plain_loop_and_pads_after_eos(vocabulary):
    model = ToyModel(vocabulary, seed=vocabulary)
    sentences, max_lengths = list(range(50)), [1 + i % 11 for i in range(50)]
    result = GreedySearch()(
        model.step, model.start(sentences, 1), np.array(max_lengths, "int32"), 11
    )
    for i, sentence in enumerate(sentences):
        expected = oracle.greedy_search(model.next_log_probabilities(sentence), max_lengths[i], EOS)
        assert_same_hypotheses(hypotheses(result, i), expected)
    tokens, lengths = ops.convert_to_numpy(result.tokens), ops.convert_to_numpy(result.lengths)
    assert tokens.shape == (50, 1, 11) and tokens.dtype == np.int32
    assert np.all(tokens[np.arange(11) >= lengths[..., None]] == 0)
    assert GreedySearch().width == 1


def test_greedy_leaves_rows_as_they_are():
    received = []
    model = ToyModel(5)

    def step(tokens, rows, state):
        received.append(rows)
        return model.step(tokens, rows, state)

    GreedySearch()(step, model.start([1], 1), [3], 3)
    assert set(received) == {None}


@pytest.mark.parametrize("max_lengths", [3, [[3], [2]]])
def test_maximum_lengths_of_another_shape_are_named(max_lengths):
    model = ToyModel(6, seed=0)
    with pytest.raises(ValueError, match=r"`max_lengths` must have the shape \[batch\]"):
        GreedySearch()(model.step, (), max_lengths=max_lengths, max_length=3)
