"""Keras' `quantize` and `enable_lora` on our layers: train, save, copy, load elsewhere, export."""

import gc
import warnings

import keras
import numpy as np
import pytest

from keras_transformer import Transformer
from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RelativePosition,
    TiedEmbedding,
)
from tests.closeness import assert_close
from tests.composition.answers import answer
from tests.layers.harness import reload_in_a_fresh_process, reloaded
from tests.layers.oracle_parameters import array, randomize

GENERATOR = np.random.default_rng(0)
TOKENS = GENERATOR.integers(1, 20, (3, 4)).astype("int32")
STATES, SOURCE = GENERATOR.normal(size=(2, 3, 4, 16)).astype("float32")
MODES = ["int8", "int4", "float8"]


@pytest.fixture(autouse=True)
def nothing_is_collected():
    """Keras collects garbage after each quantized map, which takes 0.1 s in a long test run."""
    gc.freeze()
    yield
    gc.unfreeze()


def in_model(call, *arrays):
    """Returns a functional model of a layer, and its inputs."""
    inputs = {
        name: keras.Input((None, *array.shape[2:]), dtype=array.dtype.name, name=name)
        for name, array in zip(("states", "source"), arrays, strict=False)
    }
    model = keras.Model(inputs, call(*inputs.values()))
    return model, dict(zip(inputs, arrays, strict=True))


def embedding_and_logits(tokens):
    layer = TiedEmbedding(20, 16)
    return layer(layer(tokens), reverse=True)


def attention(states, source):
    layer = MultiHeadAttention(2, 5, value_dim=3, use_bias=True)
    own = MultiHeadAttention(2, 8, position=RelativePosition(2))
    return layer(own(states, states), source)


def transformer():
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "norm": "pre"}
    model = Transformer.from_preset("tiny", vocab_size=20, **sizes)
    return model, {"source": TOKENS, "target": TOKENS}


# Name: makes a model with random weights and its inputs.
MODELS = {
    "MultiHeadAttention": lambda: in_model(attention, STATES, SOURCE),
    "FeedForward": lambda: in_model(lambda x: FeedForward(12, activation="gelu")(x), STATES),
    "TiedEmbedding": lambda: in_model(embedding_and_logits, TOKENS),
    "EncoderBlock": lambda: in_model(lambda x: EncoderBlock(2, 12)(x), STATES),
    "DecoderBlock": lambda: in_model(lambda *x: DecoderBlock(2, 12)(*x), STATES, SOURCE),
    "Encoder": lambda: in_model(lambda x: Encoder([EncoderBlock(2, 12)] * 2)(x), STATES),
    "Decoder": lambda: in_model(Decoder([DecoderBlock(2, 12) for _ in "ab"]), STATES, SOURCE),
    "Transformer": transformer,
}


def cases(names, quick):
    """Returns the parameters `name` and `change`; all but the quick pairs are slow tests."""
    return [
        pytest.param(name, change, marks=() if (name, change) in quick else pytest.mark.slow)
        for name in names
        for change in [*MODES, "lora"]
    ]


def make(name):
    model, inputs = MODELS[name]()
    randomize(model)
    return model, inputs


def quantize(model, mode):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        warnings.filterwarnings("ignore", "Invalid quantization mode")  # Embeddings in float8.
        model.quantize(mode)


def maps_of(layer):
    """Returns the linear maps and embeddings inside a layer or model."""
    kinds = keras.layers.Dense, keras.layers.ReversibleEmbedding
    parts = {id(part): part for part in layer._flatten_layers(include_self=False)}
    return [part for part in parts.values() if isinstance(part, kinds)]


def add_lora(model):
    """Enables LoRA on every map, with factors that matter."""
    for part in maps_of(model):
        part.enable_lora(2)
    for weight in model.trainable_weights:
        if "lora" in weight.name:
            weight.assign(GENERATOR.normal(size=weight.shape) * 0.3)


def changed(model, form):
    """Changes a model by the words of a form, such as "int8 lora"."""
    for change in form.split():
        if change == "lora":
            add_lora(model)
        elif change != "none":
            quantize(model, change)


QUICK = [("MultiHeadAttention", "lora"), ("FeedForward", "int8"), ("TiedEmbedding", "int4")]


@pytest.mark.parametrize("name, change", cases(MODELS, quick=QUICK))
def test_answers_change_a_little_and_stay_when_copied_and_saved(name, change, tmp_path):
    model, inputs = make(name)
    before = answer(model, inputs)
    changed(model, change)
    modes = {part.quantization_mode for part in maps_of(model)}
    assert modes <= {None if change == "lora" else change, None}
    assert change == "lora" or change in modes or (name, change) == ("TiedEmbedding", "float8")
    expected = answer(model, inputs)
    difference = np.abs(expected - before).max() / np.abs(before).max()
    if (name, change) == ("TiedEmbedding", "float8"):  # Keras has no embeddings in float8.
        assert difference == 0
    else:
        assert 1e-4 < difference < {"int4": 0.5, "lora": np.inf}.get(change, 0.15)
    assert_close(answer(reloaded(model, tmp_path), inputs), expected)
    if change != "lora":  # Keras' clones have no LoRA either.
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        np.testing.assert_array_equal(answer(clone, inputs), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    other, _ = MODELS[name]()
    if change != "lora":
        quantize(other, change)
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(answer(other, inputs), expected)


@pytest.mark.slow
def test_another_process_loads_quantized_models(tmp_path):
    names = ["DecoderBlock", "TiedEmbedding", "FeedForward"]
    for name, mode in zip(names, MODES, strict=True):
        model, inputs = make(name)
        quantize(model, mode)
        model.save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}.npz", **inputs, outputs=answer(model, inputs))
    differences = reload_in_a_fresh_process(tmp_path)
    assert list(differences) == sorted(names)
    assert_close(list(differences.values()), 0.0, scale=1.0)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's format")
@pytest.mark.parametrize("name, change", cases(
    ["TiedEmbedding", "DecoderBlock", "Encoder", "Transformer"],
    quick=[("TiedEmbedding", "lora"), ("Encoder", "int8")],
))  # fmt: skip
def test_exported_models_answer_alike(name, change, tmp_path):
    import tensorflow as tf

    model, inputs = make(name)
    changed(model, change)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    served = loaded.serve({key: tf.constant(value) for key, value in inputs.items()})
    expected = answer(model, inputs)
    if change == "int8":
        # Another order of operations moves a number to the next step of int8 now and then.
        np.testing.assert_allclose(served, expected, atol=0.02 * np.abs(expected).max())
    else:
        assert_close(served, expected)


@pytest.mark.parametrize("mode", [pytest.param(None, marks=pytest.mark.slow), "int8"])
def test_lora_trains_its_factors_alone(mode):
    model, inputs = make("Transformer")
    if mode:
        quantize(model, mode)
    model.encoder.trainable = model.decoder.trainable = False
    for block in [*model.encoder.blocks, *model.decoder.blocks]:
        block.feed_forward.inner_dense.trainable = True
        block.feed_forward.inner_dense.enable_lora(rank=2)
        block.feed_forward.inner_dense.bias.trainable = False
    model.target_embedding.trainable = False
    frozen = [weight for weight in model.weights if "lora" not in weight.name]
    before = [array(weight) for weight in frozen]
    assert len(model.trainable_weights) == 4
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=True)
    history = model.fit(inputs, (TOKENS + 7) % 20, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0]
    for weight, old in zip(frozen, before, strict=True):
        np.testing.assert_array_equal(array(weight), old)


def test_a_quantized_part_of_a_model_is_restored(tmp_path):
    """A mode and a configuration for each map, also of a block in a stack."""
    model, inputs = make("Encoder")
    attention = model.layers[-1].blocks[0].attention
    attention.query_dense.quantize("int8")
    attention.output_dense.quantize(
        "int4", config=keras.quantizers.Int4QuantizationConfig(block_size=-1)
    )
    expected = answer(model, inputs)
    again = reloaded(model, tmp_path)
    np.testing.assert_array_equal(answer(again, inputs), expected)
    modes = [part.quantization_mode for part in maps_of(again.layers[-1].blocks[0])]
    assert sorted(filter(None, modes)) == ["int4", "int8"] and len(modes) == 6
