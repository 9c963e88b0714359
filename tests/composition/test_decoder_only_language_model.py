"""A decoder-only language model: our `Decoder` without an encoder, generating with our searches.

The language alternates two tokens, "a b a b a b": the next token is the one before the last.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling, compile_search
from keras_transformer.layers import Decoder, DecoderBlock, TiedEmbedding
from tests.closeness import assert_close
from tests.composition.answers import answer
from tests.layers.harness import reloaded

pytestmark = pytest.mark.slow  # It trains.
PADDING, BOS, EOS, VOCAB_SIZE = 0, 2, 3, 12


@keras.saving.register_keras_serializable(package="test_decoder_only")
class LanguageModel(keras.Model):
    """Token ids to logits of the next token, with the step that `keras_transformer.decoding` calls.

    The decoder is causal by itself; it has no cross-attention as it is given no encoder outputs.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = TiedEmbedding(VOCAB_SIZE, d_model=32)
        blocks = [DecoderBlock(num_heads=4, intermediate_dim=64, dropout=0.0) for _ in range(2)]
        self.decoder = Decoder(blocks, dropout=0.0)

    def call(self, tokens):
        states = self.decoder(self.embedding(tokens), padding_mask=ops.not_equal(tokens, PADDING))
        return self.embedding(states, reverse=True)

    def start(self, prompt):
        """The state of a search that goes on from `prompt` [rows, length], all of one length.

        All but the last token go through the decoder here; the last one is the first step's.
        """
        max_length = 24 if keras.backend.backend() == "jax" else None
        cache = self.decoder.make_cache(batch_size=ops.shape(prompt)[0], max_length=max_length)
        if prompt.shape[1] > 1:
            _, cache = self.decoder(self.embedding(prompt[:, :-1]), cache=cache)
        return {"cache": cache, "prompt": prompt}

    def step(self, tokens, parents, state):
        """A `keras_transformer.decoding.Step`."""
        cache = self.decoder.reorder_cache(state["cache"], parents)
        # A search begins with BOS; this one goes on from the last token of the prompt instead.
        is_first = ops.equal(cache.length, ops.shape(state["prompt"])[1] - 1)
        tokens = ops.where(is_first, state["prompt"][:, -1], tokens)
        states, cache = self.decoder(self.embedding(ops.expand_dims(tokens, 1)), cache=cache)
        logits = self.embedding(ops.squeeze(states, 1), reverse=True)
        return logits, {**state, "cache": cache}

    def generate(self, prompt, search, max_length=12):
        """Tokens [batch, n, max_length] that follow the prompts."""
        prompt = ops.convert_to_tensor(np.repeat(prompt, search.width, axis=0), dtype="int32")

        def run(prompt):
            limits = ops.full((prompt.shape[0] // search.width,), max_length, dtype="int32")
            state = self.start(prompt)
            return search(self.step, state, limits, max_length, bos_id=BOS, eos_id=EOS)

        return np.asarray(compile_search(run, self.variables)(prompt).tokens)


def sentences(count, seed):
    """Rows BOS a b a b a b EOS, a and b being two tokens drawn at random."""
    random = np.random.default_rng(seed)
    pairs = np.stack([random.choice(np.arange(4, VOCAB_SIZE), 2, False) for _ in range(count)])
    rows = np.zeros((count, 8), "int32")
    for row, pair in zip(rows, pairs, strict=True):
        row[:] = [BOS, *np.tile(pair, 3), EOS]
    return rows


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(1)
    model = LanguageModel()
    model.compile(
        keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    rows = sentences(4_800, seed=1)
    history = model.fit(rows[:, :-1], rows[:, 1:], batch_size=64, epochs=3, verbose=0).history
    # The two tokens of a pair cannot be guessed: (ln 8 + ln 7) / 7 a token.
    model.final_loss = history["loss"][-1]
    return model


def test_its_loss_comes_near_the_entropy_of_the_language(trained):
    entropy = (np.log(8) + np.log(7)) / 7
    assert trained.final_loss < entropy + 0.15


def test_it_sees_no_token_that_comes_later(trained):
    one, other = np.array([[BOS, 5, 6, 5]]), np.array([[BOS, 5, 9, 8]])
    np.testing.assert_array_equal(answer(trained, one)[:, :2], answer(trained, other)[:, :2])
    assert np.abs(answer(trained, one) - answer(trained, other))[:, 2:].max() > 0.1


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(beam_size=3)])
def test_it_goes_on_from_prompts(trained, search):
    prompts = np.array([[BOS, 5, 6], [BOS, 11, 4]])
    found = trained.generate(prompts, search)
    assert found[0, 0].tolist() == [5, 6, 5, 6, EOS, 0, 0, 0, 0, 0, 0, 0]
    assert found[1, 0].tolist() == [11, 4, 11, 4, EOS, 0, 0, 0, 0, 0, 0, 0]


def test_sampling_makes_sentences_of_the_language(trained):
    samples = trained.generate(np.array([[BOS]]), Sampling(top_p=0.9, num_samples=8, seed=1))[0]
    assert len({tuple(row) for row in samples}) > 4
    alternating = [(row[:2].tolist() * 3) == row[:6].tolist() for row in samples]
    assert sum(alternating) >= 7


def test_a_step_gives_the_logits_of_the_whole_sequence(trained):
    rows = sentences(3, seed=2)
    state = trained.start(ops.convert_to_tensor(rows[:, :1]))
    whole = answer(trained, rows)
    for position in range(rows.shape[1]):
        logits, state = trained.step(ops.convert_to_tensor(rows[:, position]), None, state)
        assert_close(ops.convert_to_numpy(logits), whole[:, position])


def test_a_saved_model_is_exactly_the_same(trained, tmp_path):
    rows = sentences(3, seed=3)
    again = reloaded(trained, tmp_path)
    np.testing.assert_array_equal(answer(trained, rows), answer(again, rows))
