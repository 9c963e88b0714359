"""Beam search == all sequences when wide enough, == a plain search when narrow; so is greedy."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import BeamSearch, GreedySearch, length_penalty
from tests.closeness import assert_close
from tests.decoding.toy_model import (
    EOS,
    ToyModel,
    array,
    assert_same_hypotheses,
    hypotheses,
    table_step,
)
from tests.oracle import search as oracle

PENALTIES = {"gnmt": oracle.gnmt, "length": oracle.by_length}


def run(search, model, sentences, max_lengths, max_length=None, **ids):
    max_length = max_length or max(max_lengths)
    state = model.start(sentences, search.width)
    return search(model.step, state, np.array(max_lengths, "int32"), max_length, **ids)


@pytest.mark.parametrize("alpha, normalization", [(0.0, "gnmt"), (0.6, "length"), (2.0, "gnmt")])
def test_a_beam_that_holds_every_prefix_finds_what_brute_force_finds(alpha, normalization):
    search = BeamSearch(108, alpha, n_best=7, length_normalization=normalization)
    model = ToyModel(4, sharpness=2.0)
    sentences = [11, 500, 700]
    result = run(search, model, sentences, [4] * 3)
    for i, sentence in enumerate(sentences):
        of_sentence = model.next_log_probabilities(sentence), 4, alpha, 7, 4, EOS
        expected = oracle.exhaustive_search(*of_sentence, PENALTIES[normalization])
        assert_same_hypotheses(hypotheses(result, i), expected)


@pytest.mark.parametrize("vocabulary, beam_size, alpha, normalization", [
    (2, 4, 0.6, "gnmt"), (3, 2, 0.0, "gnmt"), (5, 1, 0.6, "gnmt"), (5, 4, 0.0, "gnmt"),
    (40, 2, 1.5, "length"),
])  # fmt: skip
def test_narrow_beams_equal_a_plain_python_search(vocabulary, beam_size, alpha, normalization):
    eos = vocabulary - 1 if vocabulary < 4 else EOS
    sentences = list(range(0, 240, 24))
    max_lengths = [1 + i % 9 for i in range(len(sentences))]
    for n_best, seed, eos_bias in ((1, 0, 0.0), (beam_size, 1, -1.0)):
        model = ToyModel(vocabulary, seed, eos=eos, bos=0, eos_bias=eos_bias)
        search = BeamSearch(beam_size, alpha, n_best, normalization)
        result = run(search, model, sentences, max_lengths, 12, bos_id=0, eos_id=eos, pad_id=99)
        lengths = array(result.lengths)[..., None]
        assert np.all((array(result.tokens) == 99) == (np.arange(12) >= lengths))
        for i, sentence in enumerate(sentences):
            of_sentence = model.next_log_probabilities(sentence), beam_size, alpha, n_best
            expected = oracle.beam_search(
                *of_sentence, max_lengths[i], eos, PENALTIES[normalization]
            )
            found = hypotheses(result, i)
            assert_same_hypotheses(found[: len(expected)], expected)
            assert all(score == -np.inf for _, score, _ in found[len(expected) :])


@pytest.mark.parametrize("patience, n_best", [(0.5, 4), (1, 1), (2.3, 1)])
def test_patience_stops_when_so_many_hypotheses_have_ended(patience, n_best):
    sentences, max_lengths = list(range(0, 240, 6)), [3 + i % 9 for i in range(40)]
    model = ToyModel(12, seed=3)
    search = BeamSearch(4, 1.0, n_best, length_normalization="length", patience=patience)
    result = run(search, model, sentences, max_lengths)
    exact = run(dataclasses.replace(search, patience=None), model, sentences, max_lengths)
    for i, sentence in enumerate(sentences):
        of_sentence = model.next_log_probabilities(sentence), 4, 1.0, n_best, max_lengths[i], EOS
        expected = oracle.beam_search(*of_sentence, oracle.by_length, patience)
        assert_same_hypotheses(hypotheses(result, i), expected)
    # The stop is not exact: some answers are others, and none is better.
    scores, best = array(result.scores), array(exact.scores)
    assert np.any(scores < best - 1e-3) or patience > 2
    assert np.all(scores <= best + 1e-5)


def test_greedy_equals_a_plain_loop_and_pads_after_eos():
    model, received = ToyModel(8, seed=4), []
    sentences, max_lengths = list(range(50)), [1 + i % 11 for i in range(50)]

    def step(tokens, parents, state):
        received.append(parents)
        return model.step(tokens, parents, state)

    limits = np.array(max_lengths, "int32")
    result = GreedySearch()(step, model.start(sentences, 1), limits, 11)
    for i, sentence in enumerate(sentences):
        expected = oracle.greedy_search(model.next_log_probabilities(sentence), max_lengths[i], EOS)
        assert_same_hypotheses(hypotheses(result, i), expected)
    tokens, lengths = array(result.tokens), array(result.lengths)
    assert tokens.shape == (50, 1, 11) and tokens.dtype == np.int32
    assert np.all(tokens[np.arange(11) >= lengths[..., None]] == 0)
    assert GreedySearch().width == 1 and set(received) == {None}  # rows stay where they are


def test_ties_go_to_the_lower_beam_and_the_lower_id():
    table = np.zeros((6, 6), "float32")
    result = BeamSearch(2, 0.0, n_best=2)(table_step(table), (), [3], 3, eos_id=5)
    assert [one[0] for one in hypotheses(result, 0)] == [(0, 0, 0), (0, 0, 1)]
    result = GreedySearch()(table_step(table), (), [3], 3, eos_id=5)
    assert hypotheses(result, 0)[0][0] == (0, 0, 0)


def test_the_search_stops_when_every_sentence_is_final():
    model, steps = ToyModel(5, eos_bias=8.0), []

    def step(*arguments):
        steps.append(arguments)
        return model.step(*arguments)

    result = BeamSearch(3, 0.6)(step, model.start([1, 2], 3), [50, 50], 50)
    assert array(result.lengths).max() <= 3 and len(steps) < 10


def test_limits_of_zero_give_empty_hypotheses_and_limits_are_cut_to_the_buffer():
    model = ToyModel(5)
    for search in (BeamSearch(2, 0.6, length_normalization="length"), GreedySearch()):
        result = run(search, model, [1, 2], [0, 99], max_length=3)
        lengths = array(result.lengths)[:, 0]
        assert lengths[0] == 0 and 1 <= lengths[1] <= 3
        assert np.all(np.isfinite(array(result.scores)))


@pytest.mark.skipif(keras.config.backend() == "jax", reason="JAX has none by default")
def test_a_float64_state_keeps_scores_in_float64():
    step = table_step(np.log(np.full((5, 5), 0.2)), "float64")
    result = BeamSearch(2)(step, {"cache": ops.zeros((2, 3), "float64")}, [4], 4)
    assert keras.backend.standardize_dtype(result.scores.dtype) == "float64"
    length = int(array(result.lengths)[0, 0])
    assert_close(array(result.log_probabilities)[0, 0], length * np.log(0.2), "float64")


def test_values_of_the_length_penalty():
    """EOS is in the length."""
    lengths = np.array([[1, 7], [13, 50]], "int32")
    found = array(length_penalty(lengths, 0.6))
    assert_close(found, [[1.0, 2**0.6], [3**0.6, (55 / 6) ** 0.6]])
    assert found.dtype == np.float32
    found = array(length_penalty(lengths, 0.6, "length"))
    assert_close(found, lengths**0.6)
    assert np.all(array(length_penalty(lengths, 0.0)) == 1.0)
    for alpha in (-0.1, float("inf"), None, True):
        with pytest.raises(ValueError, match="length_penalty"):
            length_penalty(3, alpha)
