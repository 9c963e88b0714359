"""A training that is stopped loses no step: by a callback, by Ctrl-C, by SIGTERM."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

from keras_transformer.errors import StoppedBySignal
from keras_transformer.signals import StopSignals
from keras_transformer.training import Checkpoints
from keras_transformer.training.metrics import TokenEvaluator
from tests.closeness import assert_all_close
from tests.training.test_trainer import run
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


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 6], ids=["between checkpoints", "at a checkpoint"])
def test_a_callback_that_stops_the_training_loses_no_step(tmp_path, step):
    callback = AtStep(step, stop)
    result = train_with(tmp_path, callback)
    assert result.steps == step
    assert [row["step"] for row in result.history] == (["3", "4"] if step == 4 else ["3", "6"])
    assert (tmp_path / f"checkpoints/step-0000000{step}.weights.h5").is_file()
    lines = []
    assert run(tmp_path, lines, max_steps=7).steps == 7
    assert any(line.startswith(f"Resuming after step {step}") for line in lines)


@pytest.mark.slow
def test_a_stop_where_only_an_evaluation_is_due_keeps_the_weights(tmp_path):
    callback = AtStep(2, stop)
    result = train_with(tmp_path, callback, evaluate_every=2, checkpoint_every=5)
    assert result.steps == 2
    assert [row["step"] for row in result.history] == ["2"]
    for weight, kept in zip(result.translator.model.get_weights(), callback.weights, strict=True):
        np.testing.assert_array_equal(weight, kept)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_saves_the_step_and_the_resumed_training_equals_an_uninterrupted_one(
    tmp_path, number
):
    expected = run(tmp_path / "whole", max_steps=7)
    checkpoints, lines, callback = tmp_path / "parts" / "checkpoints", [], AtStep(5, send(number))
    with pytest.raises(StoppedBySignal, match="after step 5; the checkpoint of step 5") as stopped:
        train_with(tmp_path / "parts", callback, lines)
    assert stopped.value.signal_number == number
    assert repr(str(checkpoints)) in str(stopped.value)
    assert any("second signal" in line for line in lines)
    # The state has the weights and the position of a whole step.
    metadata = Checkpoints(checkpoints).restore_state(callback.model)
    assert metadata["step"] == int(callback.model.optimizer.iterations) == 5
    lines.clear()
    resumed = run(tmp_path / "parts", lines, max_steps=7)
    assert any(line.startswith("Resuming after step 5") for line in lines)
    assert [row["valid_loss"] for row in resumed.history] == [
        row["valid_loss"] for row in expected.history
    ]
    models = resumed.translator.model, expected.translator.model
    assert_all_close(*(model.get_weights() for model in models))


@pytest.mark.slow
def test_a_second_signal_stops_at_once_and_names_the_last_checkpoint(tmp_path):
    with pytest.raises(StoppedBySignal, match="after step 5; the checkpoint of step 3"):
        train_with(tmp_path, AtStep(5, send(signal.SIGINT, signal.SIGINT)))


def test_a_signal_before_the_first_checkpoint_promises_none(tmp_path):
    callback = AtStep(1, send(signal.SIGINT, signal.SIGINT))
    with pytest.raises(StoppedBySignal, match="before the first checkpoint"):
        train_with(tmp_path, callback)


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


def test_handlers_of_the_caller_and_ignored_signals_stay():
    def handler(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, handler), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals(print):
            assert signal.getsignal(signal.SIGTERM) is handler
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    with StopSignals(print):
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_training_outside_of_the_main_thread_leaves_the_signals_alone():
    seen = []

    def enter():
        with StopSignals(print):
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_that_python_would_ignore_is_not_lost(capsys, number):
    """An exception that a callback of the garbage collector raises goes nowhere."""

    def during_collection(phase, info):
        gc.callbacks.remove(during_collection)
        signal.raise_signal(number)

    gc.callbacks.append(during_collection)
    with pytest.raises(StoppedBySignal) as stop, StopSignals(print):
        gc.collect()
        time.sleep(30)
    assert stop.value.signal_number == number
    assert not capsys.readouterr().err
