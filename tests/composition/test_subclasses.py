"""Classes of a user that add weights and arguments to ours: what is saved is loaded again."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    TiedEmbedding,
)
from keras_transformer.models import CausalLanguageModel
from keras_transformer.training import TransformerSchedule
from tests.closeness import assert_close
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array

STATES = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
IDS = np.array([[2, 5, 6]], "int32")


class Gated:
    """Adds a weight of the width of the outputs."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.gate = self.add_weight(name="gate", shape=(8,), initializer="random_normal")


@keras.saving.register_keras_serializable("test")
class GatedFeedForward(Gated, FeedForward):
    def call(self, inputs, training=None):
        return super().call(inputs, training=training) * self.gate


@keras.saving.register_keras_serializable("test")
class GatedAttention(Gated, MultiHeadAttention):
    def call(self, query, value, key=None, training=None):
        return super().call(query, value, key, training=training) * self.gate


@keras.saving.register_keras_serializable("test")
class GatedEmbedding(Gated, TiedEmbedding):
    def call(self, inputs, reverse=False):
        return super().call(inputs, reverse=reverse) * self.gate


@keras.saving.register_keras_serializable("test")
class SmallEncoder(Encoder):
    def __init__(self, num_layers, **options):
        super().__init__([EncoderBlock(2, 16) for _ in range(num_layers)], **options)

    def get_config(self):
        return {"num_layers": len(self.blocks), "name": self.name}


@keras.saving.register_keras_serializable("test")
class ScaledLanguageModel(CausalLanguageModel):
    def __init__(self, embedding, decoder, name="scaled", scale=1.0):
        super().__init__(embedding, decoder, name)
        self.scale = scale

    def call(self, inputs, training=None, mask=None):
        return self.scale * super().call(inputs, training=training, mask=mask)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


def of_states(layer, number=1):
    inputs = keras.Input((None, 8))
    return keras.Model(inputs, layer(*[inputs] * number))


CELLS = {
    "feed-forward": lambda: (of_states(GatedFeedForward(16)), STATES),
    "attention": lambda: (of_states(GatedAttention(2, 4), number=2), STATES),
    "embedding": lambda: (keras.Sequential([GatedEmbedding(9, 8)]), IDS),
    "stack": lambda: (of_states(SmallEncoder(2)), STATES),
    "model": lambda: (
        ScaledLanguageModel(TiedEmbedding(9, 8), Decoder([DecoderBlock(2, 16)]), scale=3.0),
        IDS,
    ),
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_file_is_loaded_with_what_a_subclass_adds(cell, tmp_path):
    model, inputs = CELLS[cell]()
    expected = array(model(inputs))
    loaded = reloaded(model, tmp_path)
    assert type(loaded) is type(model)
    assert_close(array(loaded(inputs)), expected)
    model.save_weights(tmp_path / "own.weights.h5")
    other, _ = CELLS[cell]()
    other(inputs)
    other.load_weights(tmp_path / "own.weights.h5")
    assert_close(array(other(inputs)), expected)


def test_a_schedule_may_have_more_arguments():
    class Floor(TransformerSchedule):
        def __init__(self, d_model, floor=0.0):
            super().__init__(d_model)
            self.floor = floor

        def get_config(self):
            return {**super().get_config(), "floor": self.floor}

    assert Floor(512).get_config()["floor"] == 0.0
