"""What Keras' `quantize` and `enable_lora` do with our layers: nothing, and nothing breaks.

Keras implements both in `Dense`, `EinsumDense` and `Embedding`; our layers hold their matrices
themselves. A head of Keras' own on our encoder has both.
"""

import warnings

import keras
import numpy as np
import pytest

from keras_transformer.layers import Encoder, EncoderBlock, MultiHeadAttention, TiedEmbedding
from tests.composition.answers import answer

TOKENS = np.array([[5, 9, 3, 7]], "int32")


def make_model():
    encoder = Encoder([EncoderBlock(num_heads=2, intermediate_dim=32)], name="encoder")
    return keras.Sequential(
        [keras.Input((4,), dtype="int32"), TiedEmbedding(20, 16), encoder, keras.layers.Dense(20)]
    )


@pytest.mark.parametrize(
    "layer", [MultiHeadAttention(2, 8), EncoderBlock(2, 16), TiedEmbedding(20, 16)]
)
def test_our_layers_have_no_lora(layer):
    assert not hasattr(layer, "enable_lora")


def test_lora_of_the_head_trains_the_head_alone():
    model = make_model()
    *body, head = model.layers
    for layer in body:
        layer.trainable = False
    head.enable_lora(rank=2)
    frozen = [weight for weight in model.weights if not weight.trainable]
    before = [weight.numpy() for weight in frozen]
    expected = answer(model, TOKENS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)
    model.fit(TOKENS, TOKENS, epochs=3, verbose=0)
    assert len(frozen) == len(model.weights) - 3  # Two factors of the kernel, and the bias.
    for weight, old in zip(frozen, before, strict=True):
        np.testing.assert_array_equal(weight, old)
    assert np.abs(answer(model, TOKENS) - expected).max() > 1e-4


def test_quantize_changes_the_head_alone():
    model = make_model()
    states_of = keras.Model(model.inputs[0], model.get_layer("encoder").output)
    states, expected = answer(states_of, TOKENS), answer(model, TOKENS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize("int8")
    np.testing.assert_array_equal(answer(states_of, TOKENS), states)
    assert model.layers[-1].quantization_mode == "int8"
    difference = np.abs(answer(model, TOKENS) - expected).max()
    assert 0 < difference < 0.05
