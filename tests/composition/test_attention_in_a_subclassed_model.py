"""Our `MultiHeadAttention` in somebody's subclassed `keras.Model`: attention over a set.

A learned query attends to the members of a set; the order of the members does not count.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from tests.closeness import assert_close
from tests.composition.answers import answer
from tests.layers.harness import reloaded


@keras.saving.register_keras_serializable(package="test_subclassed")
class SetRegressor(keras.Model):
    def __init__(self, width=16, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.encode = keras.layers.Dense(width, activation="relu")
        self.attention = MultiHeadAttention(num_heads=2, key_dim=8)
        self.answer = keras.layers.Dense(1)

    def build(self, members_shape):
        self.query = self.add_weight(shape=(1, 1, self.width), name="query")
        self.encode.build(members_shape)
        states_shape = (*members_shape[:-1], self.width)
        self.attention.build((None, 1, self.width), states_shape)
        self.answer.build((None, self.width))
        self.built = True

    def call(self, members, return_attention_scores=False):
        """`members` [batch, count, 2]: a value, and whether there is such a member (1 or 0)."""
        states = self.encode(members)
        query = ops.broadcast_to(self.query, (ops.shape(members)[0], 1, self.width))
        is_there = ops.expand_dims(members[..., 1] > 0, 1)  # [batch, 1, count]
        pooled, scores = self.attention(
            query, states, attention_mask=is_there, return_attention_scores=True
        )
        answer = self.answer(ops.squeeze(pooled, 1))
        return (answer, scores) if return_attention_scores else answer

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def make_sets(count, seed):
    """Sets of 1 to 6 numbers and the largest of each."""
    random = np.random.default_rng(seed)
    is_there = np.arange(6) < random.integers(1, 7, (count, 1))
    values = random.uniform(0, 1, (count, 6)) * is_there
    return np.stack([values, is_there], axis=-1).astype("float32"), values.max(1, keepdims=True)


@pytest.mark.slow
def test_it_learns_the_largest_of_a_set():
    model = SetRegressor()
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    sets, largest = make_sets(3_200, seed=1)
    losses = model.fit(sets, largest, batch_size=64, epochs=6, verbose=0).history["loss"]
    # Knowing only how many numbers there are leaves 0.04.
    assert losses[-1] < 0.01 < losses[0]


def test_what_is_not_there_does_not_count():
    model = SetRegressor()
    sets, _ = make_sets(8, seed=2)
    other = sets + (sets[..., 1:] == 0) * np.array([7.0, 0.0], "float32")
    np.testing.assert_array_equal(answer(model, sets), answer(model, other))
    _, scores = model(sets, return_attention_scores=True)
    scores = ops.convert_to_numpy(scores)  # [batch, heads, 1, count]
    assert_close(np.sum(scores, axis=-1), 1)
    assert np.all(np.moveaxis(scores, -1, 1)[sets[..., 1] == 0] == 0)


def test_the_order_does_not_count():
    model = SetRegressor()
    sets, _ = make_sets(8, seed=3)
    assert_close(answer(model, sets), answer(model, sets[:, ::-1].copy()))


def test_a_saved_model_is_exactly_the_same(tmp_path):
    model = SetRegressor()
    sets, _ = make_sets(8, seed=4)
    expected = answer(model, sets)
    again = reloaded(model, tmp_path)
    np.testing.assert_array_equal(answer(again, sets), expected)
