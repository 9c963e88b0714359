"""Exponential moving averages of the weights: `use_ema` of the optimizer and `SwapEMAWeights`."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Encoder, EncoderBlock
from keras_transformer.training import FusedAdam, GlobalClipAdam, LayerwiseAdam, Muon
from tests.closeness import assert_all_close

MOMENTUM = 0.7
RANDOM = np.random.default_rng(1)
INPUTS, LABELS = (RANDOM.normal(size=(12, 3, 8)).astype("float32") for _ in range(2))
OPTIMIZERS = {
    "fused": FusedAdam,
    "clipping": GlobalClipAdam,
    "layerwise": LayerwiseAdam,
    "muon": Muon,
}


def make_model(optimizer="fused"):
    block = EncoderBlock(num_heads=2, intermediate_dim=16, dropout=0.0)
    model = keras.Sequential([keras.Input((None, 8)), Encoder([block], dropout=0.0)])
    optimizer = OPTIMIZERS[optimizer](1e-2, use_ema=True, ema_momentum=MOMENTUM)
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


class Recorder(keras.callbacks.Callback):
    """Keeps the weights after every step, and what evaluations see."""

    def on_train_begin(self, logs=None):
        self.steps, self.evaluated = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(self.model.get_weights())

    def on_test_batch_end(self, batch, logs=None):
        self.evaluated.append(self.model.get_weights())


def average(steps):
    """Mean of the weights whose last term weighs 1 - MOMENTUM; it begins with the first step."""
    means = steps[0]
    for weights in steps[1:]:
        means = [MOMENTUM * m + (1 - MOMENTUM) * w for m, w in zip(means, weights, strict=True)]
    return means


def fit(model, *callbacks, epochs=2):
    model.fit(
        INPUTS,
        LABELS,
        batch_size=4,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        validation_data=(INPUTS, LABELS),
        validation_batch_size=12,
        callbacks=list(callbacks),
    )


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_evaluations_see_the_average_and_training_does_not(optimizer):
    model, recorder = make_model(optimizer), Recorder()
    fit(model, keras.callbacks.SwapEMAWeights(), recorder)
    assert len(recorder.steps) == 6 and len(recorder.evaluated) == 2
    assert_all_close(recorder.evaluated[0], average(recorder.steps[:3]))
    assert_all_close(recorder.evaluated[1], average(recorder.steps))
    # An average that were the weights would prove nothing.
    pairs = zip(recorder.steps[-1], average(recorder.steps), strict=True)
    assert max(np.abs(last - mean).max() for last, mean in pairs) > 1e-3
    # At the end of `fit` Keras leaves the average in the model.
    assert_all_close(model.get_weights(), average(recorder.steps))


@pytest.mark.slow
def test_training_is_that_without_averages():
    averaged, plain = Recorder(), Recorder()
    model, other = make_model(), make_model()
    other.set_weights(model.get_weights())
    other.compile(FusedAdam(1e-2), "mse", run_eagerly=True)
    fit(model, keras.callbacks.SwapEMAWeights(), averaged)
    fit(other, plain)
    for one, two in zip(averaged.steps, plain.steps, strict=True):
        assert_all_close(one, two)


@pytest.mark.slow
def test_checkpoints_hold_the_average(tmp_path):
    model, recorder = make_model(), Recorder()
    path = str(tmp_path / "epoch-{epoch}.keras")
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    fit(model, swap, keras.callbacks.ModelCheckpoint(path), recorder)
    for epoch in (1, 2):
        saved = keras.saving.load_model(path.format(epoch=epoch))
        assert_all_close(saved.get_weights(), average(recorder.steps[: 3 * epoch]))
