"""A block of one's own in our `Encoder`: any layer that takes the call arguments of a block.

The block mixes neighbors with a convolution instead of attention. It is written as most Keras
layers are: parts made in the constructor, no `build`.
"""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import Encoder, EncoderBlock, TiedEmbedding
from tests.closeness import assert_close
from tests.composition.answers import answer
from tests.layers.harness import reloaded


@keras.saving.register_keras_serializable(package="test_custom_block")
class ConvolutionBlock(keras.layers.Layer):
    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)
        self.d_model = d_model
        self.convolution = keras.layers.Conv1D(d_model, 3, padding="same", activation="relu")
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.supports_masking = True

    def call(self, inputs, padding_mask=None, attention_mask=None, training=None):
        states = inputs
        if padding_mask is not None:  # A convolution would look at the padding.
            states = inputs * ops.cast(ops.expand_dims(padding_mask, -1), inputs.dtype)
        return self.norm(inputs + self.convolution(states))

    def get_config(self):
        return {**super().get_config(), "d_model": self.d_model}


def make_model():
    tokens = keras.Input((None,), dtype="int32")
    padding_mask = ops.not_equal(tokens, 0)
    blocks = [
        ConvolutionBlock(16),
        EncoderBlock(num_heads=2, intermediate_dim=32),
        ConvolutionBlock(16),
    ]
    states = TiedEmbedding(20, 16)(tokens)
    states = Encoder(blocks, name="encoder")(states, padding_mask=padding_mask)
    return keras.Model(tokens, keras.layers.Dense(20)(states))


TOKENS = np.array([[5, 9, 4, 0, 0], [7, 8, 9, 10, 11]], "int32")


def test_its_weights_are_found_and_trained():
    model = make_model()
    blocks = model.get_layer("encoder").blocks
    assert len(blocks[0].weights) == len(blocks[2].weights) == 4
    before = [weight.numpy() for weight in model.trainable_weights]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
    model.fit(TOKENS, TOKENS, epochs=1, verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.any(weight.numpy() != old), weight.path


def test_padding_changes_nothing():
    model = make_model()
    assert_close(answer(model, TOKENS[:1])[:, :3], answer(model, TOKENS[:1, :3]))


def test_the_encoder_leaves_building_to_a_block_without_build():
    """Keras warns of parts that stay unbuilt if somebody calls its empty `build` for such a block.

    (It does so itself when it loads one, as in any model; a `build` of its own ends that.)
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "`build")
        make_model()


def test_a_saved_model_is_exactly_the_same(tmp_path):
    model = make_model()
    again = reloaded(model, tmp_path)
    assert len(again.weights) == len(model.weights)
    np.testing.assert_array_equal(answer(model, TOKENS), answer(again, TOKENS))


def test_a_block_that_does_not_take_the_masks_says_so():
    tokens = keras.Input((None, 16))
    with pytest.raises(TypeError, match="padding_mask"):
        Encoder([keras.layers.Dense(16)])(tokens)
