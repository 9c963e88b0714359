"""Finished sentences leave the batch, and every answer is what it is when they stay."""

import functools

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
from keras_transformer.models import Ensemble, Transformer, TransformerConfig
from tests.closeness import assert_close
from tests.decoding.toy_model import ToyModel, array, assert_same

SEARCHES = [
    GreedySearch(),
    BeamSearch(3, 0.6, n_best=2),
    BeamSearch(4, constraints=[MinimumLength(3), NoRepeatNgrams(2)]),
    GreedySearch(constraints=[NoRepeatNgrams(2)]),
]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


SENTENCES = np.arange(40, 60, dtype="int32")
# The longest neither first nor last, and some that are done before the first step.
MAX_LENGTHS = np.array([5, 3, 8, 2, 4, 0, 16, 2, 3, 1, 4, 5, 9, 1, 0, 2, 7, 3, 3, 2], "int32")
MAX_LENGTH = 16
leaves_the_batch = pytest.mark.skipif(
    keras.config.backend() == "jax", reason="shapes are static on JAX: sentences stay"
)


def keep_hypotheses(width, state, sentences):
    rows = ops.reshape(width * ops.expand_dims(sentences, 1) + ops.arange(width), (-1,))
    return keras.tree.map_structure(
        lambda leaf: ops.take(leaf, rows, axis=0) if len(leaf.shape) else leaf, state
    )


def run(model, search, leave, sentences=SENTENCES, max_lengths=MAX_LENGTHS, **options):
    state = model.start(sentences, search.width)
    keep = functools.partial(keep_hypotheses, search.width) if leave else None
    return search(model.step, state, max_lengths, MAX_LENGTH, keep_sentences=keep, **options)


@pytest.mark.parametrize("search", [*SEARCHES[:3], slow(SEARCHES[3])], ids=str)
@pytest.mark.parametrize("eos_bias", [-3.0, slow(0.0)])
def test_answers_are_those_of_sentences_that_stay(search, eos_bias):
    model = ToyModel(7, seed=3, eos_bias=eos_bias)
    expected = run(model, search, leave=False)
    lengths = array(expected.lengths)
    assert len(set(lengths[:, 0].tolist())) > 3
    assert_same(run(model, search, leave=True), expected)


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(2)], ids=str)
def test_the_constraints_of_a_call_stay_with_their_sentences(search):
    model = ToyModel(7, seed=4, eos_bias=-1.0)
    prefixes = np.where(np.arange(20)[:, None] % 3 > 0, [4, 5, 6], 0)
    prefixes[:, 1] = np.where(prefixes[:, 1] > 0, 4 + np.arange(20) % 3, 0)
    expected, found = (
        run(model, search, leave, constraints=[ForcedPrefix(prefixes)]) for leave in (False, True)
    )
    assert_same(found, expected)
    tokens = array(found.tokens)[:, 0]
    whole = (MAX_LENGTHS >= 3) & (prefixes[:, 0] > 0)
    assert whole.sum() > 5
    np.testing.assert_array_equal(tokens[whole, :3], prefixes[whole])


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
        keep = functools.partial(keep_hypotheses, search.width) if leave else None
        state = model.start(np.arange(11), search.width)
        search(step, state, np.arange(1, 12), 11, keep_sentences=keep)
    # Half are done after six steps. What stays is a power of two.
    assert sizes_of_steps == 6 * [11] + [8, 4, 4, 2, 1] + 11 * [11]


def transformer(**changes):
    sizes = {"d_model": 16, "intermediate_dim": 24, "num_heads": 2, "dropout": 0.0}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}
    model = Transformer(TransformerConfig(vocab_size=12, **sizes, **layers, **changes))
    generator = np.random.default_rng(9)
    for weight in model.trainable_weights:
        weight.assign(weight + generator.normal(0, 0.3, weight.shape))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("search_class", [BeamSearch, GreedySearch])
@pytest.mark.parametrize("kind", ["transformer", "learned positions", "ensemble"])
def test_a_model_that_keeps_sentences_answers_as_one_that_does_not(kind, search_class):
    keras.utils.set_random_seed(11)
    # Or too few sentences would reach their limits.
    search = search_class(constraints=[MinimumLength(36)])
    changes = {"position": "learned", "max_length": 64} if kind == "learned positions" else {}
    model = transformer(**changes)
    if kind == "ensemble":
        model = Ensemble([model, transformer(norm="pre")])
    generator = np.random.default_rng(10)
    source = generator.integers(4, 12, (20, 9)).astype("int32")
    source *= np.arange(9) < generator.integers(1, 10, (20, 1))
    # Longer than a cache keeps recent positions apart.
    max_lengths = np.where(MAX_LENGTHS == 16, 40, MAX_LENGTHS).astype("int32")
    results = []
    for keep in (None, model.keep_sentences):

        def function(source, max_lengths, max_length, keep=keep):
            state = model.start_decoding(source, search.width, max_length)
            return search(
                model.decode_step, state, max_lengths, max_length, eos_id=3, keep_sentences=keep
            )

        compiled = compile_search(function, model.variables, sizes=("max_length",))
        results.append(compiled(source, max_lengths, max_length=40))
    expected, found = results
    lengths = array(expected.lengths)
    assert len(np.unique(lengths)) > 4 and lengths.max() > 33
    np.testing.assert_array_equal(*(array(one.tokens) for one in results))
    assert_close(array(found.scores), array(expected.scores), scale=1.0)


@leaves_the_batch
def test_sentences_are_kept_after_32_steps_at_the_latest():
    calls = []

    def never_ending(tokens, parents, state):
        return ops.one_hot(ops.full_like(tokens, 5), 10), state + 1

    def keep(state, sentences):
        calls.append((int(state[0]), len(sentences)))
        return ops.take(state, sentences)

    state = ops.zeros((4,), dtype="int32")
    GreedySearch()(never_ending, state, [70, 70, 70, 10], 70, keep_sentences=keep)
    assert calls[:2] == [(32, 4), (64, 4)]


@leaves_the_batch
@pytest.mark.parametrize("position, length", [("sinusoidal", 6), ("rotary", 3)])
def test_a_model_that_keeps_sentences_merges_its_caches(position, length):
    """With sinusoidal positions, the two beams of a sentence share a cache."""
    model = transformer(position=position)
    state = model.start_decoding(ops.ones((3, 5), dtype="int32"), 2, 8)
    rows = ops.arange(6, dtype="int32")
    for _ in range(3):
        _, state = model.decode_step(ops.ones_like(rows), rows, state)
    caches = [state.cache, model.keep_sentences(state, ops.array([2, 0], dtype="int32")).cache]
    for cache, lengths in zip(caches, ([0, length], [length, 0]), strict=True):
        for block in cache.blocks:
            assert [part.shape[2] for part in block.self_attention.keys] == lengths
