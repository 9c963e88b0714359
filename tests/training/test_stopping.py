"""A training that is stopped loses no step: by a callback, by a signal, by a diverging loss."""

import gc
import os
import signal
import time

import numpy as np
import pytest

from keras_transformer.errors import StoppedBySignal, StopSignals, UserError
from keras_transformer.training import Checkpoints
from keras_transformer.training.metrics import TokenEvaluator
from keras_transformer.training.plan import make_plan
from tests.closeness import assert_all_close
from tests.training.test_trainer import corpus, run, settings
from tests.training.uncompiled import AtStep, stop

pytestmark = [
    pytest.mark.tensorflow_only("`train` reads its data with tf.data"),
    pytest.mark.usefixtures("uncompiled"),
]


@pytest.fixture(autouse=True)
def _sigint_is_handled():
    """A shell starts what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(*numbers):
    return lambda model: [os.kill(os.getpid(), number) for number in numbers]


def train_with(directory, callback, lines=None, **changes):
    return run(directory, lines, callbacks=[callback], max_steps=7, **changes)


def test_a_callback_that_stops_the_training_loses_no_step(tmp_path):
    result = train_with(tmp_path, AtStep(2, stop))
    assert result.steps == 2
    assert [row["step"] for row in result.history] == ["2"]
    assert (tmp_path / "checkpoints/step-00000002.weights.h5").is_file()
    lines = []
    assert run(tmp_path, lines, max_steps=3).steps == 3
    assert any(line.startswith("Resuming after step 2") for line in lines)


def test_a_signal_saves_the_step_and_the_resumed_training_equals_an_uninterrupted_one(tmp_path):
    once = {"evaluate_every": 4, "checkpoint_every": 4}
    expected = run(tmp_path / "whole", max_steps=4, **once)
    callback = AtStep(2, send(signal.SIGTERM))
    checkpoints, lines = tmp_path / "parts" / "checkpoints", []
    with pytest.raises(StoppedBySignal, match="after step 2; the checkpoint of step 2") as stopped:
        train_with(tmp_path / "parts", callback, lines, **once)
    assert stopped.value.signal_number == signal.SIGTERM
    assert repr(str(checkpoints)) in str(stopped.value)
    assert any("second signal" in line for line in lines)
    # The state has the weights and the position of a whole step.
    metadata = Checkpoints(checkpoints).restore_state(callback.model)
    assert metadata["step"] == int(callback.model.optimizer.iterations) == 2
    resumed = run(tmp_path / "parts", max_steps=4, **once)
    assert [row["valid_loss"] for row in resumed.history] == [
        row["valid_loss"] for row in expected.history
    ]
    models = resumed.translator.model, expected.translator.model
    assert_all_close(*(model.get_weights() for model in models))


@pytest.mark.slow
def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(tmp_path, monkeypatch):
    reached = []

    def interrupted(evaluator, batches):
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the end of the evaluation")

    with monkeypatch.context() as patch:
        patch.setattr(TokenEvaluator, "__call__", interrupted)
        with pytest.raises(StoppedBySignal, match="the checkpoint of step 3"):
            run(tmp_path)
    assert not reached
    resumed = run(tmp_path)
    assert resumed.steps == 6
    assert [row["step"] for row in resumed.history] == ["3", "6"]


def test_a_signal_that_python_would_ignore_is_not_lost(capsys):
    """An exception that a callback of the garbage collector raises goes nowhere."""

    def during_collection(phase, info):
        gc.callbacks.remove(during_collection)
        signal.raise_signal(signal.SIGTERM)

    gc.callbacks.append(during_collection)
    with pytest.raises(StoppedBySignal) as stop, StopSignals(print):
        gc.collect()
        time.sleep(30)
    assert stop.value.signal_number == signal.SIGTERM
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "step, value, message",
    [(2, 1e6, "above 100"), pytest.param(6, np.nan, "is nan", marks=pytest.mark.slow)],
)
def test_the_batch_of_a_diverged_step_is_saved(tmp_path, step, value, message):
    """The embedding is broken before the step, as the update of the step before might break it."""
    changes = {"evaluate_every": None, "checkpoint_every": None, "max_steps": 8}
    batches = make_plan(
        tmp_path, corpus(1), {}, settings(**changes), (None, None), print
    ).data.batches

    def break_embedding(model):
        variable = model.transformer.target_embedding.weights[0]
        variable.assign(value * np.random.default_rng(0).normal(size=variable.shape))

    path = tmp_path / "diverged-batch.npz"
    with pytest.raises(UserError, match=message) as error:
        run(tmp_path, callbacks=[AtStep(step, break_embedding, before=True)], **changes)
    assert f"at step {step}: the training has diverged" in str(error.value)
    assert f"The batch of that step is in {str(path)!r}" in str(error.value)
    with np.load(path) as file:
        found = dict(file)
    for number, prefix in ((step - 1, ""), (step - 2, "previous_")):
        epoch, batch = batches.position(number, 0)
        inputs, labels, weights = next(batches.batches(epoch, batch))
        arrays = {**inputs, "labels": labels, "weights": weights, "epoch": epoch, "batch": batch}
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[prefix + name], array)
