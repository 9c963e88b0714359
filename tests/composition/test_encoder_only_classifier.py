"""An encoder-only classifier: our embedding and encoder, Keras' pooling and head, in `fit`.

The task needs order: does token 5 come before token 6?
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import Encoder, EncoderBlock, TiedEmbedding
from tests.closeness import assert_close
from tests.composition.answers import answer
from tests.layers.harness import reloaded


def make_classifier():
    tokens = keras.Input((None,), dtype="int32")
    padding_mask = ops.not_equal(tokens, 0)
    states = TiedEmbedding(vocab_size=12, d_model=32)(tokens)
    blocks = [EncoderBlock(num_heads=4, intermediate_dim=64, dropout=0.0)]
    states = Encoder(blocks, dropout=0.0)(states, padding_mask=padding_mask)
    pooled = keras.layers.GlobalAveragePooling1D()(states, mask=padding_mask)
    return keras.Model(tokens, keras.layers.Dense(2)(pooled))


def make_examples(count, seed):
    """Ids [count, 10], padded with 0; each row has one 5 and one 6 among other tokens."""
    random = np.random.default_rng(seed)
    tokens = random.integers(7, 12, (count, 10))
    lengths = random.integers(4, 11, count)
    labels = random.integers(0, 2, count)
    for row, length, label in zip(tokens, lengths, labels, strict=True):
        first, second = np.sort(random.choice(length, 2, replace=False))
        row[first], row[second] = (5, 6) if label else (6, 5)
        row[length:] = 0
    return tokens.astype("int32"), labels


@pytest.mark.slow
def test_it_learns_the_order_of_two_tokens():
    model = make_classifier()
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(*make_examples(6_400, seed=1), batch_size=64, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    _, accuracy = model.evaluate(*make_examples(500, seed=2), verbose=0)
    assert accuracy > 0.95  # Chance is 0.5.


def test_padding_changes_nothing():
    model = make_classifier()
    alone, padded = np.array([[5, 7, 6]]), np.array([[5, 7, 6, 0, 0, 0]])
    assert_close(answer(model, alone), answer(model, padded))


def test_a_saved_classifier_answers_exactly_the_same(tmp_path):
    model = make_classifier()
    tokens, _ = make_examples(8, seed=3)
    again = reloaded(model, tmp_path)
    np.testing.assert_array_equal(answer(model, tokens), answer(again, tokens))
