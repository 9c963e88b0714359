"""Keras' callbacks with a `Transformer`: EarlyStopping, ModelCheckpoint, TensorBoard."""

import keras
import numpy as np
import pytest

from keras_transformer.models import Transformer
from keras_transformer.training import FusedAdam, LabelSmoothedCrossEntropy
from tests.closeness import assert_close
from tests.composition.answers import tiny_transformer

RANDOM = np.random.default_rng(1)
# The task: copy the source. The target begins with BOS, 2.
IDS = RANDOM.integers(4, 20, (32, 5)).astype("int32")
INPUTS = {"source": IDS, "target": np.pad(IDS, ((0, 0), (1, 0)), constant_values=2)[:, :-1]}
# Labels that have nothing to do with the inputs: the loss on them grows soon.
NOISE = RANDOM.integers(4, 20, IDS.shape).astype("int32")


def make_transformer(learning_rate=3e-3):
    model = tiny_transformer(d_model=16, intermediate_dim=32, dropout=0.0)
    model.compile(FusedAdam(learning_rate), LabelSmoothedCrossEntropy(0.0))
    return model


def fit(model, *callbacks, epochs=4, **kwargs):
    history = model.fit(
        INPUTS, IDS, batch_size=16, epochs=epochs, callbacks=list(callbacks), verbose=0, **kwargs
    )
    return history.history


@pytest.mark.slow
def test_early_stopping_gives_back_the_best_weights():
    model = make_transformer(learning_rate=3e-2)
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    losses = fit(model, stopping, epochs=40, validation_data=(INPUTS, NOISE))["val_loss"]
    assert len(losses) == np.argmin(losses) + 1 + 2 < 40
    loss = model.evaluate(INPUTS, NOISE, batch_size=16, verbose=0)
    assert_close(loss, min(losses))


@pytest.mark.slow
def test_a_training_goes_on_exactly_from_a_checkpoint(tmp_path):
    """Model and optimizer are in one `.keras` file."""
    model = make_transformer()
    path = str(tmp_path / "epoch-{epoch}.keras")
    fit(model, keras.callbacks.ModelCheckpoint(path), shuffle=False)
    resumed = keras.saving.load_model(path.format(epoch=2))
    assert isinstance(resumed, Transformer)
    fit(resumed, initial_epoch=2, shuffle=False)
    for one, other in zip(resumed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_checkpoint_keeps_the_best_weights(tmp_path):
    path = str(tmp_path / "best.weights.h5")
    checkpoint = keras.callbacks.ModelCheckpoint(
        path, "val_loss", save_best_only=True, save_weights_only=True
    )
    model = make_transformer(learning_rate=3e-2)
    losses = fit(model, checkpoint, epochs=8, validation_data=(INPUTS, NOISE))["val_loss"]
    assert np.argmin(losses) < 7
    best = make_transformer()
    best.optimizer.build(best.trainable_variables)
    best.load_weights(path)
    loss = best.evaluate(INPUTS, NOISE, batch_size=16, verbose=0)
    assert_close(loss, min(losses))


def test_tensorboard_shows_losses_and_weights_by_their_paths(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = make_transformer()
    tensorboard = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, write_graph=False)
    losses = fit(model, tensorboard, epochs=2)["loss"]
    events = EventAccumulator(str(tmp_path / "train")).Reload()
    logged = [
        np.frombuffer(event.tensor_proto.tensor_content, "float32")[0]
        if event.tensor_proto.tensor_content
        else event.tensor_proto.float_val[0]
        for event in events.Tensors("epoch_loss")
    ]
    assert_close(logged, losses)
    tags = events.Tags()["tensors"]
    assert any("block_0/attention/query_kernel" in tag for tag in tags)
