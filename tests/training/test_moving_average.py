"""The moving average of the weights: its numbers, its choice at the end, and its resumption."""

import keras
import numpy as np
import pytest

from keras_transformer.models import TrainingRecipe
from keras_transformer.training import LossModel, compile_model, load_weights_only, train
from keras_transformer.training.metrics import TokenEvaluation, TokenEvaluator
from tests.closeness import assert_all_close
from tests.layers.oracle_parameters import array
from tests.losses.test_loss_model import small
from tests.training.test_trainer import RECIPE, corpus, settings
from tests.training.uncompiled import AtStep, stop, uncompiled

TRAINS = pytest.mark.tensorflow_only("`train` reads its data with tf.data")
MOMENTUM, STEPS = 0.75, 6


def values(model):
    if keras.backend.backend() == "jax":
        model.jax_state_sync()  # In `fit`, Keras keeps the weights elsewhere.
    return {one.path: array(one).astype("float64") for one in model.trainable_variables}


class EachStep(keras.callbacks.Callback):
    """Keeps the weights after each step."""

    def on_train_begin(self, logs=None):
        self.weights = []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(values(self.model))

    def average(self):
        average = dict(self.weights[0])
        for weights in self.weights[1:]:
            for path, value in weights.items():
                average[path] = MOMENTUM * average[path] + (1 - MOMENTUM) * value
        return average


@pytest.mark.parametrize(
    "micro_batches, clip_norm, dtype, jit_compile",
    [
        (1, None, "float32", False),
        pytest.param(
            2,
            0.1,
            "float32",
            False,
            marks=[pytest.mark.slow, pytest.mark.tensorflow_only("steps in parts")],
        ),
        pytest.param(1, None, "mixed_bfloat16", False, marks=pytest.mark.slow),
        pytest.param(1, 0.1, "float32", True, marks=pytest.mark.slow),
    ],
)
def test_fit_ends_with_the_average_of_the_weights_after_each_step(
    micro_batches, clip_norm, dtype, jit_compile
):
    model = LossModel(small(dtype))
    model.micro_batches = micro_batches
    recipe = TrainingRecipe(warmup_steps=2, clip_norm=clip_norm, ema_momentum=MOMENTUM)
    compile_model(model, recipe, jit_compile=jit_compile)
    ids = np.random.default_rng(0).integers(4, 20, (4 * STEPS, 5)).astype("int32")
    inputs, weights = {"source": ids, "target": ids}, np.full(ids.shape, 1 / 20)
    each = EachStep()
    model.fit(inputs, ids, 4, callbacks=[each], sample_weight=weights, verbose=0)
    assert len(each.weights) == STEPS
    assert_all_close(values(model), each.average())


def train_with(directory, callback, report=lambda line: None):
    recipe = {**RECIPE, "ema_momentum": MOMENTUM}
    changed = settings(recipe=recipe, max_steps=STEPS)
    return train(directory, corpus(1), corpus(2, 8), changed, callbacks=[callback], report=report)


def state(directory):
    with np.load(directory / "checkpoints" / "state.npz") as file:
        return {name: file[name] for name in file if name != "metadata"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory whose moving average has the best loss; the result, each step, the lines."""
    directory, each, lines = tmp_path_factory.mktemp("trained") / "model", EachStep(), []
    # Two validations, the average of two checkpoints, the last step, and the moving average.
    losses = iter([5.0, 5.0, 4.0, 4.0])
    with pytest.MonkeyPatch.context() as patch, uncompiled():
        patch.setattr(
            TokenEvaluator, "__call__", lambda *_: TokenEvaluation(next(losses, 3.0), 2.0, 0.5, 9)
        )
        result = train_with(directory, each, lines.append)
    return directory, result.translator.model, each, lines


@TRAINS
def test_the_moving_average_is_a_candidate_that_can_be_chosen(trained):
    directory, model, each, lines = trained
    assert lines[-2:] == [
        "moving average of the weights: validation loss 3.000",
        "Final weights: moving average of the weights.",
    ]
    load_weights_only(model, directory / "model.weights.h5")
    assert_all_close(values(model), each.average())
    assert not list(directory.glob("checkpoints/average*"))


@TRAINS
def test_the_checkpoint_has_the_weights_of_the_last_step(trained):
    directory, model, each, _ = trained
    load_weights_only(model, directory / f"checkpoints/step-{STEPS:08d}.weights.h5")
    assert_all_close(values(model), each.weights[-1])


@TRAINS
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(3, id="at a checkpoint", marks=pytest.mark.slow),
        pytest.param(4, id="between checkpoints"),
    ],
)
def test_a_training_that_was_stopped_ends_with_the_same_bits(tmp_path, trained, step):
    train_with(tmp_path, AtStep(step, stop))
    train_with(tmp_path, EachStep())
    found, expected = state(tmp_path), state(trained[0])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
