"""Finished sentences leave the batch, and every answer is what it is when they stay."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import (
    BeamSearch,
    ForcedPrefix,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    compile_search,
)
from keras_transformer.layers.caches import hypotheses_of, take_entries
from keras_transformer.models import Transformer
from tests.closeness import assert_close
from tests.decoding.toy_model import ToyModel, array, assert_same
from tests.layers.oracle_parameters import randomize


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


SENTENCES = np.arange(40, 60, dtype="int32")
# The longest neither first nor last, and some that are done before the first step.
MAX_LENGTHS = np.array([5, 3, 8, 2, 4, 0, 16, 2, 3, 1, 4, 5, 9, 1, 0, 2, 7, 3, 3, 2], "int32")
MAX_LENGTH = 16
leaves_the_batch = pytest.mark.skipif(
    keras.config.backend() == "jax", reason="shapes are static on JAX: sentences stay"
)


def keeping(search):
    return lambda state, sentences: take_entries(state, hypotheses_of(sentences, search.width))


def run(model, search, leave, **options):
    state = model.start(SENTENCES, search.width)
    keep = keeping(search) if leave else None
    return search(model.step, state, MAX_LENGTHS, MAX_LENGTH, keep_sentences=keep, **options)


@pytest.mark.parametrize("search, is_prefixed", [
    (GreedySearch(), True), (BeamSearch(3, 0.6, n_best=2), False), (BeamSearch(2), True),
    (BeamSearch(4, constraints=[MinimumLength(3), NoRepeatNgrams(2)]), False),
], ids=str)  # fmt: skip
def test_answers_are_those_of_sentences_that_stay(search, is_prefixed):
    model = ToyModel(7, seed=3, eos_bias=-3.0)
    prefixes = np.where(np.arange(20)[:, None] % 3 > 0, [4, 5, 6], 0)
    prefixes[:, 1] = np.where(prefixes[:, 1] > 0, 4 + np.arange(20) % 3, 0)
    constraints = [ForcedPrefix(prefixes)] if is_prefixed else []
    expected, found = (
        run(model, search, leave, constraints=constraints) for leave in (False, True)
    )
    assert len(set(array(expected.lengths)[:, 0].tolist())) > 3
    assert_same(found, expected)
    whole = (MAX_LENGTHS >= 3) & (prefixes[:, 0] > 0)
    tokens = array(found.tokens)[whole, 0, :3]
    assert not is_prefixed or np.array_equal(tokens, prefixes[whole])


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(2)], ids=str)
def test_the_largest_length_may_be_one_of_numpy(search):
    model = ToyModel(7, seed=3)
    state = model.start(SENTENCES, search.width)
    limits = MAX_LENGTHS.astype("int64")
    found, expected = (
        search(model.step, state, limits, longest) for longest in (limits.max(), MAX_LENGTH)
    )
    assert_same(found, expected)


@leaves_the_batch
@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(3)], ids=str)
def test_steps_have_the_sentences_that_are_left(search):
    """Limits of 1 to 11, and never an EOS: after n steps 11 - n sentences are left."""
    model = ToyModel(7, seed=6, eos_bias=-50.0)
    sizes_of_steps = []

    def step(tokens, parents, state):
        sizes_of_steps.append(tokens.shape[0] // search.width)
        return model.step(tokens, parents, state)

    for leave in (True, False):
        keep = keeping(search) if leave else None
        state = model.start(np.arange(11), search.width)
        search(step, state, np.arange(1, 12), 11, keep_sentences=keep)
    # Half are done after six steps. What stays is a power of two.
    assert sizes_of_steps == 6 * [11] + [8, 4, 4, 2, 1] + 11 * [11]


def test_variables_are_read_at_each_call():
    """A training between two calls changes the variables that the function reads."""
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


WINDOW = {"position": "rotary", "sliding_window": 3}
LONG_BEAMS = BeamSearch(3, n_best=3, constraints=[MinimumLength(80)])


@pytest.mark.parametrize("settings, search, max_lengths", [
    (WINDOW, BeamSearch(3, n_best=3), [9, 5]),
    slow({"position": "relative", "max_distance": 3}, GreedySearch(), [9, 5]),
    # Caches in two parts, which are merged after 32 steps.
    pytest.param({}, LONG_BEAMS, [80, 75], marks=[pytest.mark.slow, leaves_the_batch]),
], ids=str)  # fmt: skip
def test_a_search_has_the_log_probabilities_of_the_whole_model(settings, search, max_lengths):
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer.from_preset("tiny", vocab_size=12, **layers, **settings)
    randomize(model)
    source = np.array([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
    longest = max_lengths[0]
    state = model.start_decoding(ops.array(source), search.width, longest)
    assert longest < 80 or len(state.cache.blocks[0].self_attention.keys) == 2
    found = search(
        model.decode_step, state, max_lengths, longest, keep_sentences=model.keep_sentences
    )
    tokens, lengths, log_probabilities = map(
        array, (found.tokens, found.lengths, found.log_probabilities)
    )
    for row, rank in np.ndindex(*lengths.shape):
        answer = tokens[row, rank, : int(lengths[row, rank])].astype("int32")
        target = np.concatenate([[2], answer[:-1]])[None]
        logits = array(model({"source": source[row : row + 1], "target": target}))[0]
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total = logits[np.arange(len(answer)), answer].sum()
        assert_close(log_probabilities[row, rank], total, scale=1.0)
