"""padded == unpadded, however the mask arrives and however the model is written.

A Keras mask is lost by `x + layer(x)` in a functional model; a lost mask moves these outputs by
about 1.
"""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Decoder, DecoderBlock, Encoder, EncoderBlock, TiedEmbedding
from tests.closeness import assert_close
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array

SOURCE = np.array([[5, 9, 3], [7, 8, 3]], "int32")
TARGET = np.array([[2, 4, 6, 8], [2, 9, 9, 5]], "int32")
SIZES = {"num_heads": 2, "intermediate_dim": 12}


@keras.saving.register_keras_serializable(package="test_padding")
class Subclassed(keras.Model):
    """`implicit`: the masks travel with the tensors; otherwise they are arguments."""

    def __init__(self, norm="post", implicit=True, **kwargs):
        super().__init__(**kwargs)
        self.norm, self.implicit = norm, implicit
        self.embedding = TiedEmbedding(10, 8, mask_zero=implicit)
        self.encoder = Encoder([EncoderBlock(**SIZES, norm=norm) for _ in range(2)])
        self.decoder = Decoder([DecoderBlock(**SIZES, norm=norm) for _ in range(2)])

    def call(self, inputs):
        source, target = inputs["source"], inputs["target"]
        encoder_masks, decoder_masks = {}, {}
        if not self.implicit:
            encoder_masks = {"padding_mask": source != 0}
            decoder_masks = {"padding_mask": target != 0, "encoder_padding_mask": source != 0}
        encoded = self.encoder(self.embedding(source), **encoder_masks)
        states = self.decoder(self.embedding(target), encoded, **decoder_masks)
        return self.embedding(states, reverse=True)

    def get_config(self):
        return {"norm": self.norm, "implicit": self.implicit, "name": self.name}


def functional(norm, implicit):
    model = Subclassed(norm, implicit)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")}
    return keras.Model(inputs, model.call(inputs))


def bare_blocks(norm, implicit):
    """Blocks in a functional model, without a stack around them."""
    embedding = TiedEmbedding(10, 8, mask_zero=implicit)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")}
    encoded, states = embedding(inputs["source"]), embedding(inputs["target"])
    for _ in range(2):
        encoded = EncoderBlock(**SIZES, norm=norm)(encoded)
        states = DecoderBlock(**SIZES, norm=norm)(states, encoded)
    return keras.Model(inputs, embedding(states, reverse=True))


def padded(ids, width):
    return np.concatenate([ids, np.zeros((len(ids), width), "int32")], axis=1)


@pytest.mark.parametrize("make, norm, implicit", [
    (functional, "post", True), (Subclassed, "pre", True), (bare_blocks, "post", True),
    pytest.param(functional, "pre", False, marks=pytest.mark.slow),
])  # fmt: skip
def test_padding_changes_nothing(tmp_path, make, norm, implicit):
    model = make(norm, implicit)
    want = array(model({"source": SOURCE, "target": TARGET}))
    longer = {"source": padded(SOURCE, 4), "target": padded(TARGET, 3)}
    for one in (model, reloaded(model, tmp_path)):
        assert_close(array(one(longer))[:, :4], want)


def test_the_test_would_see_a_lost_mask():
    model = Subclassed(implicit=False)
    want = array(model({"source": SOURCE, "target": TARGET}))
    longer = np.where(padded(SOURCE, 4) == 0, 1, padded(SOURCE, 4))  # Tokens, not padding.
    assert np.abs(array(model({"source": longer, "target": TARGET})) - want).max() > 0.1


def test_explicit_and_implicit_masks_are_combined():
    embedding = keras.layers.Embedding(10, 8, mask_zero=True)
    encoder = Encoder([EncoderBlock(**SIZES)])
    longer = padded(SOURCE, 4)
    hide_third = np.arange(7) != 2
    outputs = encoder(embedding(longer), padding_mask=np.tile(hide_third, (2, 1)))
    want = encoder(embedding(SOURCE[:, :2]))
    assert_close(array(outputs)[:, :2], array(want))
