"""Checkpoints: the whole state comes back; a damaged file is noticed and the one before used."""

import dataclasses
import os
import time

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.training import Checkpoints, load_weights_only
from keras_transformer.training.checkpoints import Progress
from tests.training.uncompiled import RUN_EAGERLY

ENDING = ".weights.h5"
INPUTS, TARGETS = np.linspace(0, 1, 24).reshape(12, 2), np.linspace(1, 0, 36).reshape(12, 3)


def make_model(units=8, seed=3):
    keras.utils.set_random_seed(seed)
    hidden = keras.layers.Dense(units), keras.layers.Dropout(0.5, seed=seed)
    model = keras.Sequential([keras.Input((2,)), *hidden, keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=RUN_EAGERLY)
    return model


def train(model, steps):
    for _ in range(steps):
        model.train_on_batch(INPUTS, TARGETS)


def values(model):
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]


def test_a_restored_training_goes_on_as_if_it_had_never_stopped(tmp_path):
    model, checkpoints = make_model(), Checkpoints(tmp_path)
    assert checkpoints.restore_state(model) is None
    train(model, 3)
    checkpoints.save_state(model, {"step": 3, "best": 1.5})
    train(model, 4)

    other = make_model(seed=9)
    assert Checkpoints(tmp_path).restore_state(other) == {"step": 3, "best": 1.5}
    train(other, 4)
    for expected, value in zip(values(model), values(other), strict=True):
        np.testing.assert_array_equal(expected, value)


def test_files_that_a_kill_left_of_another_step_are_removed_once_they_are_old(tmp_path):
    first, second = ".writing-0123456789ab-", ".writing-ba9876543210-"
    names = [f"{first}step-00000004{ENDING}", f"{first}{second}average{ENDING}"]
    names.append(f"{second}step-00000004{ENDING}")  # still being written
    for name in names:
        (tmp_path / name).write_text("half")
    for name in names[:2]:
        os.utime(tmp_path / name, (0, time.time() - 2 * 3600))
    Checkpoints(tmp_path).save_weights(make_model(), 6)
    assert {path.name for path in tmp_path.iterdir()} == {names[2], f"step-00000006{ENDING}"}


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, lambda path: path.write_bytes(b"")])
def test_a_damaged_state_is_noticed_and_the_one_before_is_used(tmp_path, damage, caplog):
    checkpoints, model = Checkpoints(tmp_path), make_model(units=300)
    for step in (1, 2):
        train(model, 1)
        checkpoints.save_state(model, {"step": step})
    damage(checkpoints.state_path)
    assert checkpoints.restore_state(make_model(units=300)) == {"step": 1}
    assert "damaged" in caplog.text
    damage(checkpoints.previous_state_path)
    with pytest.raises(UserError, match="is damaged, and so is its copy.$"):
        checkpoints.restore_state(make_model(units=300))
    checkpoints.save_weights(model, 2)
    with pytest.raises(UserError, match="can still be averaged, with `keras-transformer average"):
        checkpoints.restore_state(make_model(units=300))


def test_a_state_that_unpacks_to_more_than_its_size_is_not_read(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    np.savez_compressed(checkpoints.state_path, metadata=np.zeros(2**20, "uint8"))
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", lambda *_: pytest.fail("read"))
    assert checkpoints.metadata() is None
    with pytest.raises(UserError, match="damaged"):
        checkpoints.restore_state(make_model())


def test_a_kill_between_the_two_renames_leaves_the_previous_state(tmp_path):
    checkpoints, model = Checkpoints(tmp_path), make_model()
    checkpoints.save_state(model, {"step": 1})
    checkpoints.state_path.rename(checkpoints.previous_state_path)
    assert checkpoints.restore_state(make_model()) == {"step": 1}


def test_state_of_another_model_is_refused_before_anything_changes(tmp_path):
    Checkpoints(tmp_path).save_state(make_model(units=8), {"step": 1})
    other = make_model(units=9)
    before = values(other)[: len(other.variables)]
    with pytest.raises(UserError, match="another model"):
        Checkpoints(tmp_path).restore_state(other)
    for expected, variable in zip(before, other.variables, strict=True):
        np.testing.assert_array_equal(expected, variable.numpy())


def test_the_last_weight_files_are_kept(tmp_path):
    checkpoints, model = Checkpoints(tmp_path, keep=2), make_model()
    for step in (5, 10, 100_000_000):
        checkpoints.save_weights(model, step)
    names = [path.name for path in checkpoints.weight_files()]
    assert names == ["step-00000010.weights.h5", "step-100000000.weights.h5"]


def test_weight_files_later_than_the_restored_state_are_removed(tmp_path):
    checkpoints, model = Checkpoints(tmp_path), make_model()
    checkpoints.save_weights(model, 5)
    checkpoints.save_state(model, {"step": 5})
    checkpoints.save_weights(model, 10)
    checkpoints.restore_state(model)
    assert [path.name for path in checkpoints.weight_files()] == ["step-00000005.weights.h5"]


def test_loading_weights_leaves_the_optimizer(tmp_path):
    checkpoints, model = Checkpoints(tmp_path), make_model()
    path = checkpoints.save_weights(model, 0)
    train(model, 2)
    load_weights_only(model, path)
    assert model.optimizer.iterations.numpy() == 2
    path.write_bytes(b"no weights")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_weights_only(model, path)


def test_wrong_arguments_say_what_was_received(tmp_path):
    with pytest.raises(ValueError, match="Received: keep=0"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, "null", '{"format": 1}', '{"format": 1, "paths": null, "metadata": {}}',
     '{"format": 1, "paths": {"model": 7}, "metadata": {}}',
     '{"format": 1, "paths": {}, "metadata": [7]}'],
)  # fmt: skip
def test_a_state_that_holds_something_else_is_one_line(tmp_path, content, caplog):
    checkpoints = Checkpoints(tmp_path)
    np.savez(checkpoints.state_path, metadata=np.frombuffer(content.encode(), "uint8"))
    with pytest.raises(UserError, match="training state in .* is damaged") as caught:
        checkpoints.restore_state(make_model())
    assert "\n" not in str(caught.value) and "damaged" in caplog.text


@pytest.mark.parametrize("state", [{"color": 1}, {"step": "many"}, {"unfinished_row": [1]}])
def test_progress_of_another_kind_is_one_line(state):
    with pytest.raises(UserError, match=f"damaged. Received: {next(iter(state))}="):
        Progress.from_dict(state)


def test_progress_that_says_bleu_is_read():
    progress = Progress(step=4, best_score=31.5, best_step=3)
    state = dataclasses.asdict(progress)
    assert Progress.from_dict(state) == progress
    old = {name.replace("_score", "_bleu"): value for name, value in state.items()}
    assert "best_bleu" in old and Progress.from_dict(old | {"last_bleu": 30.0}) == progress
