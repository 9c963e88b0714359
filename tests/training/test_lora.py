"""`enable_lora`: only the factors train, the model stays what it was until then, and is merged."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.effective_weights import all_maps, effective_matrix
from keras_transformer.models import Transformer
from keras_transformer.training import enable_lora, load_weights_only, save_weights_only
from tests.closeness import assert_close
from tests.composition.answers import answer, tiny_transformer
from tests.composition.test_quantization_and_lora import add_lora, quantize
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array

IDS = np.random.default_rng(1).integers(4, 20, (8, 5)).astype("int32")
INPUTS = {"source": IDS, "target": IDS[:, ::-1].copy()}


def classifier():
    """A model that a user composed: an encoder and a head of Keras."""
    from keras_transformer.layers import Encoder, EncoderBlock

    inputs = keras.Input((None, 8))
    return keras.Model(inputs, keras.layers.Dense(3)(Encoder([EncoderBlock(2, 16)])(inputs)))


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # of the factors
@pytest.mark.parametrize("mode", [None, "int8"])
def test_only_the_factors_train_and_the_merged_model_is_saved(mode, tmp_path):
    model = tiny_transformer(dropout=0.0, use_bias=True)
    if mode is not None:
        quantize(model, mode)
    model.trainable = False  # What a recipe of other libraries begins with does no harm.
    before = answer(model, INPUTS)
    enable_lora(model, rank=2)
    np.testing.assert_array_equal(answer(model, INPUTS), before)
    frozen = {w.path: array(w) for w in model.weights if "lora" not in w.name}
    # Two factors for each map: 4 + 2 of the encoder's block, 8 + 2 of the decoder's.
    assert len(model.trainable_weights) == 2 * 16
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, run_eagerly=True)
    losses = model.fit(INPUTS, IDS, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.05
    for weight in model.weights:
        if "lora" not in weight.name:
            np.testing.assert_array_equal(array(weight), frozen[weight.path])
    if mode is None:
        again = reloaded(model, tmp_path)
        assert not any("lora" in weight.name for weight in again.weights)
        assert_close(answer(again, INPUTS), answer(model, INPUTS))


def test_a_composed_model_is_adapted_as_a_whole():
    model = classifier()
    enable_lora(model, rank=1)
    assert len(model.trainable_weights) == 2 * (6 + 1)
    assert all("lora" in weight.name for weight in model.trainable_weights)


def test_the_maps_of_models_in_a_model_are_adapted():
    inner = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(3)])
    model = keras.Sequential([keras.Input((None, 8)), classifier(), keras.layers.Dense(8), inner])
    enable_lora(model, rank=1)
    assert len(model.trainable_weights) == 2 * (6 + 1 + 1 + 1)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_weight_files_of_mixed_precision_hold_small_changes(dtype, tmp_path):
    """Keras adds the factors in half precision, in which a change of 0.01 % is lost."""
    model = Transformer(tiny_transformer().config, dtype=dtype)
    add_lora(model)
    for weight in model.trainable_weights:
        weight.assign(weight * 0.01)
    expected = [array(effective_matrix(part)) for part in all_maps(model)]
    save_weights_only(model, tmp_path / "model.weights.h5")
    assert {part.dtype_policy.name for part in all_maps(model)} == {dtype}
    loaded = tiny_transformer()
    load_weights_only(loaded, tmp_path / "model.weights.h5")
    for part, matrix in zip(all_maps(loaded), expected, strict=True):
        assert_close(array(effective_matrix(part)), matrix)


def test_maps_that_cannot_have_lora_are_refused():
    model = tiny_transformer()
    enable_lora(model)
    with pytest.raises(ValueError, match=r"Received: .*query.* with LoRA"):
        enable_lora(model)
    model = tiny_transformer()
    quantize(model, "float8")
    with pytest.raises(ValueError, match="quantization_mode='float8'"):
        enable_lora(model)
    with pytest.raises(ValueError, match="must contain linear maps"):
        enable_lora(keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.1)]))
