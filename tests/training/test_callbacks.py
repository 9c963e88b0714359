"""Callbacks of plain Keras: BLEU on the validation set, limits, history, progress."""

import itertools

import keras
import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.errors import UserError
from keras_transformer.models import TrainingRecipe
from keras_transformer.training import (
    BleuOnDev,
    HistoryFile,
    StepProgress,
    StopOnNonFiniteLoss,
    TimeLimit,
    compile_model,
)
from tests.losses.test_loss_model import small
from tests.training.uncompiled import RUN_EAGERLY


def fit(callbacks, inputs=None, epochs=1):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse", run_eagerly=RUN_EAGERLY)
    inputs = np.ones((6, 1)) if inputs is None else inputs
    model.fit(inputs, inputs, batch_size=1, epochs=epochs, verbose=0, callbacks=callbacks)
    return model


@pytest.mark.slow
def test_bleu_on_dev_logs_val_bleu_every_other_epoch_of_fit():
    tokenizer = SubwordTokenizer([*"abcdefghijklmnopqrs"])
    model = small()
    assert tokenizer.vocab_size == model.config.vocab_size
    compile_model(model, TrainingRecipe(), run_eagerly=RUN_EAGERLY)
    callback = BleuOnDev(["a b c a", ""], ["a b c a", "a"], tokenizer, every=2)
    ids, options = np.full((2, 3), 4, "int32"), {"epochs": 4, "verbose": 0}
    history = model.fit({"source": ids, "target": ids}, ids, callbacks=[callback], **options)
    assert [epoch for epoch, _ in callback.history] == [1, 3]
    assert all(0 <= bleu <= 100 for _, bleu in callback.history)
    assert len(callback.hypotheses) == 2
    assert "val_bleu" in history.history


def test_time_limit_stops_after_the_batch_and_counts_earlier_minutes():
    limit = TimeLimit(1.0, used_minutes=2.0)
    assert fit([limit], epochs=3).optimizer.iterations == 1
    assert limit.elapsed_minutes > 2
    assert fit([TimeLimit(None)]).optimizer.iterations == 6


def test_a_non_finite_loss_stops_with_the_step():
    inputs = np.ones((6, 1))
    inputs[2:] = np.inf
    with pytest.raises(UserError, match="at step 4: the training has diverged"):
        fit([StopOnNonFiniteLoss(every=4)], inputs)


def test_history_file_is_appended_and_cut_at_the_step_of_a_resumed_training(tmp_path):
    history = HistoryFile(tmp_path / "new" / "history.csv", ("step", "loss", "bleu"))
    for step in (10, 20, 30):
        history.append({"step": step, "loss": 1 / step})
    with open(history.path, "a") as file:
        file.write("40,0.")  # a row that was being written when the process was killed
    assert [row["step"] for row in history.rows()] == ["10", "20", "30"]
    history.start(step=20)
    history.append({"step": 25, "loss": 0.5, "bleu": 1.5})
    assert [row["step"] for row in history.rows()] == ["10", "20", "25"]
    assert history.path.read_text().splitlines()[-1] == "25,0.5,1.5"


def test_step_progress_tells_steps_loss_and_speed():
    told = []
    callback = StepProgress(lambda *values: told.append(values), 12, tokens_per_step=7.0, every=3)
    fit([callback])
    assert [(done, total) for done, total, _ in told] == [(n, 12) for n in range(7)]
    assert told[0][2] == "preparing the first step"
    assert [note == "" for *_, note in told[1:]] == [True, True, False, False, False, False]
    assert "tokens/s" in told[-1][2]


def test_the_speed_of_the_bar_is_that_of_the_last_steps(monkeypatch):
    seconds, notes = itertools.accumulate([0.0, *[100.0] * 3, *[1.0] * 3]), []
    callback = StepProgress(
        lambda *values: notes.append(values[2]), 6, tokens_per_step=7.0, every=3
    )
    monkeypatch.setattr("keras_transformer.training.callbacks.time.monotonic", lambda: now[0])
    now = [next(seconds)]
    advance = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, logs=None: now.__setitem__(0, next(seconds))
    )
    fit([advance, callback])
    assert notes[-1].endswith("  7 tokens/s")
