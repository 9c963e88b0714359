"""What Keras' `quantize` and `enable_lora` do with our layers: nothing, and nothing breaks.

Keras implements both in `Dense`, `EinsumDense` and `Embedding`; our layers hold their matrices
themselves. A head of Keras' own on our encoder has both.
"""

import warnings

import keras
import numpy as np
import pytest

from keras_transformer import Transformer
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


def predicted(model, inputs, path):
    model.predict(inputs, verbose=0)
    return model


def reloaded(model, inputs, path):
    model.save(path / "before.keras")
    return keras.saving.load_model(path / "before.keras")


def quantize(model, mode):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize(mode)


@pytest.mark.parametrize("prepare", [lambda model, *_: model, predicted, reloaded])
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantize_changes_the_head_alone(mode, prepare, tmp_path):
    model = prepare(make_model(), TOKENS, tmp_path)
    before = [weight.numpy() for layer in model.layers[:-1] for weight in layer.weights]
    quantize(model, mode)
    assert model.layers[-1].quantization_mode == mode
    after = [weight.numpy() for layer in model.layers[:-1] for weight in layer.weights]
    assert len(before) == 13
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    quantized = answer(model, TOKENS)
    model.save(tmp_path / "quantized.keras")
    again = keras.saving.load_model(tmp_path / "quantized.keras")
    np.testing.assert_array_equal(answer(again, TOKENS), quantized)


def test_a_head_in_int8_is_close_to_the_original():
    model = make_model()
    expected = answer(model, TOKENS)
    quantize(model, "int8")
    assert 0 < np.abs(answer(model, TOKENS) - expected).max() < 0.05


@pytest.mark.parametrize("prepare", [lambda model, *_: model, predicted, reloaded])
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantize_leaves_a_transformer_as_it_is(mode, prepare, tmp_path):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "attention_dropout": 0.1}
    model = Transformer.from_preset("tiny", vocab_size=20, **sizes)
    inputs = {"source": TOKENS, "target": TOKENS}
    model, weights = prepare(model, inputs, tmp_path), model.get_weights()
    quantize(model, mode)
    for old, new in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert np.isfinite(answer(model, inputs)).all()
