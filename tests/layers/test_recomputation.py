"""Recomputed blocks: the training is the same, dropout included."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Encoder, EncoderBlock
from keras_transformer.models import Transformer, TransformerConfig
from tests.closeness import assert_all_close, assert_close
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array

RNG = np.random.default_rng(2)
IDS = {name: RNG.integers(1, 20, (6, 7)).astype("int32") for name in ("source", "target")}
LABELS = RNG.integers(1, 20, (6, 7)).astype("int32")


def trained(remat, dtype="float32", **options):
    """Returns the weights of a model after three steps with much dropout."""
    keras.utils.set_random_seed(4)
    config = TransformerConfig(
        vocab_size=20, num_encoder_layers=1, num_decoder_layers=2, d_model=8, intermediate_dim=12,
        num_heads=2, dropout=0.4, attention_dropout=0.2, remat=remat,
    )  # fmt: skip
    model = Transformer(config, dtype=dtype)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, **options)
    model.fit(IDS, LABELS, batch_size=2, shuffle=False, verbose=0)
    return [array(weight) for weight in model.weights]


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_the_training_is_the_same(dtype):
    assert_all_close(trained(True, dtype), trained(False, dtype), dtype)


def test_scores_and_saving(tmp_path):
    inputs = keras.Input((None, 8))
    encoder = Encoder([EncoderBlock(2, 12)], remat=True)
    model = keras.Model(inputs, encoder(inputs))
    states = RNG.normal(size=(2, 5, 8)).astype("float32")
    outputs, [scores] = encoder(states, return_attention_scores=True)
    assert_close(array(model(states)), array(outputs))
    assert tuple(scores.shape) == (2, 2, 5, 5)
    loaded = reloaded(model, tmp_path)
    assert loaded.layers[1].remat
    np.testing.assert_array_equal(array(loaded(states)), array(model(states)))


@pytest.mark.tensorflow_only("its graphs say which variables they read")
def test_without_dropout_only_weights_are_read():
    """So that a function of it can be exported, which holds the weights alone."""
    import tensorflow as tf

    encoder = Encoder([EncoderBlock(2, 12, dropout=0.5)], remat=True)
    encoder.build((None, None, 8))
    function = tf.function(lambda states: encoder(states, training=False))
    read = function.get_concrete_function(tf.TensorSpec((2, 5, 8))).graph.variables
    assert {id(one) for one in read} == {id(weight.value) for weight in encoder.weights}
