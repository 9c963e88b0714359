"""Freezing: `layer.trainable = False` before `compile`; weights stay, also after save and load.

Keras saves `trainable` of the layers of a functional model, not of their parts: a frozen
`keras.layers.MultiHeadAttention` trains again once reloaded. Our stacks, blocks and models keep it.
"""

import functools

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Encoder,
    EncoderBlock,
    LearnedPositionEmbedding,
    RelativePosition,
)
from keras_transformer.models import Transformer
from tests.composition.answers import tiny_transformer
from tests.layers.harness import reloaded

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

IDS = np.random.default_rng(1).integers(4, 20, (8, 5)).astype("int32")
INPUTS = {"source": IDS, "target": IDS[:, ::-1].copy()}


def make_transformer(**overrides):
    return tiny_transformer(num_encoder_layers=2, dropout=0.0, **overrides)


def make_encoder_model(**kwargs):
    blocks = [
        EncoderBlock(2, 16, norm="pre", position=RelativePosition(2), name=f"block_{index}")
        for index in range(2)
    ]
    encoder = Encoder(
        blocks, position=LearnedPositionEmbedding(9, name="position"), name="encoder", **kwargs
    )
    inputs = keras.Input((None, 8))
    return keras.Model(inputs, keras.layers.Dense(3)(encoder(inputs))), encoder


def fit(model, epochs=2):
    if not model.compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-2), loss, run_eagerly=True)
    model.fit(INPUTS, IDS, epochs=epochs, batch_size=8, shuffle=False, verbose=0)
    return model.get_weights()


def moved(model):
    """Paths of the weights that two steps of training move."""
    before = model.get_weights()
    after = fit(model)
    pairs = zip(model.weights, before, after, strict=True)
    return {weight.path for weight, old, new in pairs if np.any(old != new)}


def freeze(model, settings):
    """Set `trainable` of the layers at these paths of attributes, one after the other."""
    for path, value in settings.items():
        layer = model
        for name in filter(None, path.split(".")):
            layer = layer[int(name)] if name.isdigit() else getattr(layer, name)
        layer.trainable = value


def check_reload(model, folder):
    """The same weights are frozen after saving and loading."""
    frozen, again = frozen_paths(model), reloaded(model, folder)
    assert frozen
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
    assert frozen_paths(again) == frozen


def frozen_paths(model):
    return {weight.path for weight in model.weights} - {w.path for w in model.trainable_weights}


def test_a_frozen_encoder_does_not_move_and_all_else_does():
    model = make_transformer()
    model.encoder.trainable = False
    paths = {weight.path for weight in model.weights}
    assert moved(model) == {path for path in paths if not path.startswith("encoder/")}


FEED_FORWARDS = {f"{stack}.blocks.0.feed_forward": False for stack in ("encoder", "decoder")}


@pytest.mark.parametrize("settings, norm", [
    ({"encoder": False, "encoder.blocks.1": True}, "pre"),
    (FEED_FORWARDS, "post"),
    ({"target_embedding": False}, "pre"),
    slow({"encoder": False}, "post"),
    slow({"": False}, "pre"),
])  # fmt: skip
def test_a_transformer_that_is_saved_and_loaded_stays_frozen(settings, norm, tmp_path):
    model = make_transformer(norm=norm)
    freeze(model, settings)
    check_reload(model, tmp_path)
    assert frozen_paths(Transformer.from_config(model.get_config())) == frozen_paths(model)


@pytest.mark.slow
def test_a_training_goes_on_exactly_where_it_was_saved(tmp_path):
    """With other weights frozen than before, Keras could not load the state of the optimizer."""
    model = make_transformer()
    model.encoder.trainable = False
    fit(model)
    again = reloaded(model, tmp_path)
    for one, other in zip(fit(model), fit(again), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("settings", [
    {"": False},
    {"blocks.0": False},
    {"": False, "blocks.1.attention": True},
    {"position": False, "norm_layer": False, "blocks.1.attention": False},
])  # fmt: skip
def test_our_layers_in_any_functional_model_stay_frozen(settings, tmp_path):
    model, encoder = make_encoder_model()
    freeze(encoder, settings)
    check_reload(model, tmp_path)


def test_a_clone_of_a_functional_model_is_frozen_where_it_was():
    """A clone is made of configs, from which layers are not built: stacks, blocks and positions."""
    model, encoder = make_encoder_model()
    encoder.trainable = False
    encoder.blocks[1].trainable = True
    assert frozen_paths(keras.models.clone_model(model)) == frozen_paths(model) != set()


@pytest.mark.parametrize("is_built_first", [False, True])
def test_trainable_false_reaches_every_weight(is_built_first):
    """In the constructor as well, which Keras' own wrappers do not pass on."""
    model, encoder = make_encoder_model(**({} if is_built_first else {"trainable": False}))
    if is_built_first:
        encoder.trainable = False
    expected = {weight.path for weight in encoder.weights}
    assert frozen_paths(model) == expected != set()
