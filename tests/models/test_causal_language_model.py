"""Generation with caches equals plain searches over the whole model, for each prompt alone."""

import numpy as np
import pytest

from keras_transformer.decoding import BeamSearch, Sampling
from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    LearnedPositionEmbedding,
    RotaryPosition,
    TiedEmbedding,
)
from keras_transformer.models import CausalLanguageModel
from tests.closeness import assert_close
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array, randomize
from tests.oracle import search as oracle

SLOW = pytest.mark.slow
EOS, LENGTH = 3, 24
PROMPTS = [[2, 5, 6, 4], [2], [2, 4, 4, 4, 4, 5, 6, 5, 6, 4]]


def make(position="auto", block_position=None, windows=(None,), vocab_size=7, seed=1):
    blocks = [
        DecoderBlock(2, 16, norm="pre", sliding_window=window, position=block_position)
        for window in windows
    ]
    decoder = Decoder(blocks, position=position)
    model = CausalLanguageModel(TiedEmbedding(vocab_size, 8), decoder)
    randomize(model, seed, scale=1.5)
    return model


def after(model, prompt):
    """Log-probabilities after a prompt and a tuple of tokens, without a cache."""
    known = {}

    def next_log_probabilities(tokens):
        if tokens not in known:
            ids = np.zeros((1, LENGTH), "int32")  # One shape, which is compiled once.
            ids[0, : len(prompt) + len(tokens)] = [*prompt, *tokens]
            logits = array(model(ids))[0, len(prompt) + len(tokens) - 1]
            known[tokens] = oracle.log_softmax(logits.tolist())
        return known[tokens]

    return next_log_probabilities


def hypotheses(result, row):
    """Tokens and scores of one prompt, best first; what follows the tokens is padding."""
    found = []
    for tokens, length, score in zip(
        result.tokens[row], result.lengths[row], result.scores[row], strict=True
    ):
        assert not tokens[length:].any()
        found.append((tuple(tokens[:length].tolist()), float(score)))
    return found


def assert_same(found, expected):
    assert [tokens for tokens, _ in found] == [one.tokens for one in expected]
    scores = [score for _, score in found]
    assert_close(scores, [one.score for one in expected], scale=1.0)


@pytest.mark.parametrize("make_model", [
    make,
    *(pytest.param(make_model, marks=SLOW) for make_model in (
        lambda: make(windows=(3, None), position=None),
        lambda: make(block_position=RotaryPosition()),
    )),
], ids=["sinusoidal", "windows", "rotary"])  # fmt: skip
def test_samples_have_the_log_probabilities_of_the_whole_model_for_each_prompt(make_model):
    model = make_model()
    result = model.generate(PROMPTS, 12, Sampling(num_samples=4, seed=3))
    assert result.tokens.shape == (3, 4, 12)
    for row, prompt in enumerate(PROMPTS):
        next_log_probabilities = after(model, prompt)
        for tokens, score in hypotheses(result, row):
            assert EOS not in tokens[:-1] and (len(tokens) == 12 or tokens[-1] == EOS)
            steps = [next_log_probabilities(tokens[:i])[token] for i, token in enumerate(tokens)]
            assert_close(score, sum(steps), scale=1.0)
    assert len(np.unique(result.lengths)) > 2


@SLOW
def test_greedy_search_is_a_loop_over_the_whole_model():
    model = make(seed=0)
    result = model.generate(PROMPTS, 12)
    for row, prompt in enumerate(PROMPTS):
        expected = oracle.greedy_search(after(model, prompt), 12, EOS)
        assert_same(hypotheses(result, row), expected)
    assert result.lengths[:, 0].tolist() == [12, 8, 1]
    # Another shape, and an array whose padding is ignored, wherever it is.
    shorter = model.generate(np.array([[0, 2, 5, 6, 4]]), 5)
    np.testing.assert_array_equal(shorter.tokens, result.tokens[:1, :, :5])


def test_a_large_beam_finds_the_best_of_all_continuations():
    model, prompts = make(vocab_size=5), [[2, 4, 1], [2], [2, 4, 4, 1, 1, 4]]
    result = model.generate(prompts, 3, BeamSearch(beam_size=40, n_best=32))
    for row, prompt in enumerate(prompts):
        expected = oracle.exhaustive_search(after(model, prompt), 5, 0.6, 32, 3, EOS)
        assert_same(hypotheses(result, row), expected)


def test_samples_follow_the_seed_and_the_model():
    model = make()
    search = Sampling(num_samples=4_000, seed=1)
    first, again = (model.generate([[2, 5]], 1, search).tokens for _ in range(2))
    other = model.generate([[2, 5]], 1, Sampling(num_samples=4_000, seed=2)).tokens
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    frequencies = np.bincount(first.ravel(), minlength=7) / 4_000
    np.testing.assert_allclose(frequencies, np.exp(after(model, [2, 5])(())), atol=0.03)


@SLOW
def test_a_saved_model_generates_the_same(tmp_path):
    model = make(windows=(None, 3), position=LearnedPositionEmbedding(LENGTH))
    model.decoder.blocks[0].trainable = False
    again = reloaded(model, tmp_path)
    assert len(again.trainable_variables) == len(model.trainable_variables)
    found, expected = (one.generate(PROMPTS, 4) for one in (again, model))
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("arguments, words", [
    *(((prompts,), "`prompts` must be lists of one or more ids below 7. Received: prompts=")
      for prompts in ([], [[2], [0]], [2, 5], [[2, -1]])),
    (([[2] * 20], 5), "must be at most 4, the learned positions after a prompt of 20. Received"),
])  # fmt: skip
def test_wrong_arguments_are_explained(arguments, words):
    with pytest.raises(ValueError, match=words):
        make(LearnedPositionEmbedding(LENGTH)).generate(*arguments)


class Own(DecoderBlock):
    """A block of a user, which is not registered."""


def test_a_config_with_classes_of_a_user():
    model = CausalLanguageModel(TiedEmbedding(7, 8), Decoder([Own(2, 16)]))
    copy = CausalLanguageModel.from_config(model.get_config(), custom_objects={"Own": Own})
    assert type(copy.decoder.blocks[0]) is Own


def test_a_stateless_call_takes_its_inputs_by_name():
    model = make()
    states = [weight.value for weight in model.trainable_variables], []
    states[1].extend(weight.value for weight in model.non_trainable_variables)
    ids = np.array([[2, 5, 6]])
    found, _ = model.stateless_call(*states, inputs=ids)
    assert_close(array(found), array(model(ids)))
    with pytest.raises(ValueError, match="`inputs` must have an integer dtype"):
        model.stateless_call(*states, inputs=np.array([[0.5]], "float32"))
