"""The files of a training: the whole state, means of weights, locks; damage and a full disk."""

import dataclasses
import errno
import os
import resource
import shutil

import h5py
import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.layouts import LOCK_FILE
from keras_transformer.training import (
    Checkpoints,
    HistoryFile,
    TrainingSettings,
    average_checkpoints,
    save_weights_only,
)
from keras_transformer.training.checkpoints import Progress, training_lock
from tests.closeness import assert_close
from tests.training.test_trainer import run
from tests.training.uncompiled import RUN_EAGERLY

INPUTS, TARGETS = np.linspace(0, 1, 24).reshape(12, 2), np.linspace(1, 0, 36).reshape(12, 3)


def trains(test):
    """Marks a test of `train`, which reads its data with tf.data."""
    return pytest.mark.tensorflow_only("tf.data")(pytest.mark.usefixtures("uncompiled")(test))


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


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def test_a_damaged_state_is_noticed_and_the_one_before_is_used(tmp_path, caplog):
    checkpoints, model = Checkpoints(tmp_path), make_model(units=300)
    for step in (1, 2):
        train(model, 1)
        checkpoints.save_state(model, {"step": step})
    flip_a_byte(checkpoints.state_path)
    assert checkpoints.restore_state(make_model(units=300)) == {"step": 1}
    assert "damaged" in caplog.text
    flip_a_byte(checkpoints.previous_state_path)
    with pytest.raises(UserError, match="is damaged, and so is its copy.$"):
        checkpoints.restore_state(make_model(units=300))
    checkpoints.save_weights(model, 2)
    with pytest.raises(UserError, match="can still be averaged, with `keras-transformer average"):
        checkpoints.restore_state(make_model(units=300))


def test_state_of_another_model_is_refused_before_anything_changes(tmp_path):
    Checkpoints(tmp_path).save_state(make_model(units=8), {"step": 1})
    other = make_model(units=9)
    before = values(other)[: len(other.variables)]
    with pytest.raises(UserError, match="another model"):
        Checkpoints(tmp_path).restore_state(other)
    for expected, variable in zip(before, other.variables, strict=True):
        np.testing.assert_array_equal(expected, variable.numpy())


def test_the_last_weight_files_are_kept_but_none_later_than_the_restored_state(tmp_path):
    checkpoints, model = Checkpoints(tmp_path, keep=2), make_model()
    checkpoints.save_state(model, {"step": 10})
    for step in (5, 10, 100_000_000):
        checkpoints.save_weights(model, step)
    names = [path.name for path in checkpoints.weight_files()]
    assert names == ["step-00000010.weights.h5", "step-100000000.weights.h5"]
    checkpoints.restore_state(model)
    assert [path.name for path in checkpoints.weight_files()] == names[:1]


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"format": 1, "paths": null}', '{"format": 1, "paths": {}, "metadata": [7]}'],
)
def test_a_state_that_holds_something_else_is_one_line(tmp_path, content, caplog):
    checkpoints = Checkpoints(tmp_path)
    np.savez(checkpoints.state_path, metadata=np.frombuffer(content.encode(), "uint8"))
    with pytest.raises(UserError, match="training state in .* is damaged") as caught:
        checkpoints.restore_state(make_model())
    assert "\n" not in str(caught.value) and "damaged" in caplog.text


def test_progress_of_version_1_is_read_and_of_another_program_refused():
    progress = Progress(step=4, best_score=31.5, best_step=3)
    state = dataclasses.asdict(progress)
    assert Progress.from_dict(state) == progress
    old = {name.replace("_score", "_bleu"): value for name, value in state.items()}
    assert "best_bleu" in old and Progress.from_dict(old | {"last_bleu": 30.0}) == progress
    with pytest.raises(UserError, match="damaged. Received: step='many'"):
        Progress.from_dict({"step": "many"})


def make_map(units=3):
    return keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(units), keras.layers.Dropout(0.5, seed=1)]
    )


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    model, values, paths = make_map(), [], []
    for number in range(3):
        weights = [generator.normal(size=weight.shape) for weight in model.weights]
        model.set_weights(weights)
        path = tmp_path / f"{number}.weights.h5"
        model.save_weights(path)
        values.append(weights)
        paths.append(path)
    return paths, values


@pytest.mark.parametrize("number, output", [
    (3, "new/mean.weights.h5"), (3, "0.weights.h5"),
])  # fmt: skip
def test_weights_are_the_mean_and_integers_those_of_the_last_file(files, tmp_path, number, output):
    """The output may be one of the inputs."""
    paths, values = (of_all[:number] for of_all in files)
    for n, path in enumerate(paths):
        with h5py.File(path, "r+") as file:
            file["layers/seeds"] = np.array([n, 7], "uint32")
    output = average_checkpoints(paths, tmp_path / output)
    model = make_map()
    model.load_weights(output)
    for weight, *each in zip(model.get_weights(), *values, strict=True):
        assert_close(weight, np.mean(each, axis=0))
    with h5py.File(output) as file:
        assert file["layers/seeds"][...].tolist() == [number - 1, 7]


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_model(path):
    make_map(4).save_weights(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "damaged"),
        (other_model, "different models"),
    ],
)
def test_bad_files_give_one_line_and_leave_nothing(files, tmp_path, damage, message):
    paths, _ = files
    damage(paths[1])
    output = tmp_path / "out" / "mean.weights.h5"
    with pytest.raises(UserError, match=message) as error:
        average_checkpoints(paths, output)
    assert "\n" not in str(error.value) and "1.weights.h5" in str(error.value)
    assert not output.exists()


def test_no_files_and_wrong_name_are_refused(files, tmp_path):
    with pytest.raises(UserError, match="at least one"):
        average_checkpoints([], tmp_path / "mean.weights.h5")
    with pytest.raises(UserError, match="must end in"):
        average_checkpoints(files[0], tmp_path / "mean.h5")


@pytest.fixture
def file_limit():
    """Sets the largest size of a file that this process may write, until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_weights_without_room_are_an_error_of_the_system_and_the_old_file_stays(
    tmp_path, file_limit
):
    """Without the check the HDF5 library ends the process with a segmentation fault."""
    path = tmp_path / "model.weights.h5"
    path.write_bytes(b"before")
    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(500)])
    file_limit(1_000_000)
    with pytest.raises(OSError) as error:
        save_weights_only(model, path)
    file_limit(resource.RLIM_INFINITY)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(path))
    assert path.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["model.weights.h5"]


@trains
def test_a_training_without_room_for_one_checkpoint_does_not_start(tmp_path, monkeypatch):
    usage = type(shutil.disk_usage(tmp_path))(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"needs 0\.\d MB and 0\.0 MB are free"):
        run(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@trains
def test_a_second_training_is_refused_until_the_first_ends(tmp_path):
    with training_lock(tmp_path / "model"):
        with pytest.raises(UserError, match=f"in use by .*process {os.getpid()} on "):
            run(tmp_path / "model")
        assert [path.name for path in (tmp_path / "model").iterdir()] == [LOCK_FILE]
    with training_lock(tmp_path / "model"):
        pass


def test_no_link_in_the_directory_is_written_through(tmp_path):
    (tmp_path / "thesis.txt").write_text("years,of\n9,work\n")
    directory = tmp_path / "model"
    directory.mkdir()
    for name in (LOCK_FILE, "training.json", "history.csv"):
        (directory / name).symlink_to("../thesis.txt")
    with pytest.raises(OSError, match=LOCK_FILE), training_lock(directory):
        pass
    TrainingSettings().save(directory, {})
    HistoryFile(directory / "history.csv", ["step"]).start()
    assert (tmp_path / "thesis.txt").read_text() == "years,of\n9,work\n"
    assert [path.name for path in directory.iterdir() if path.is_symlink()] == [LOCK_FILE]


@trains
@pytest.mark.parametrize(
    "name",
    ["target_tokenizer.model", "checkpoints/step-00000001.weights.h5", "training.json"],
)
def test_files_of_something_else_are_refused_and_stay(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    (tmp_path / "notes.txt").write_text("precious too")
    with pytest.raises(UserError, match=name.split("/")[0]) as error:
        run(tmp_path)
    assert "\n" not in str(error.value)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {name, "notes.txt"}
    assert (tmp_path / name).read_text() == "precious"


@trains
def test_a_start_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(UserError, match="Asked for 3 devices"):
        run(tmp_path / "runs" / "model", gpus=3)
    assert not list(tmp_path.iterdir())


@trains
def test_a_first_step_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(model, *arguments, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("keras_transformer.training.LossModel.train_step", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(tmp_path / "model", tensorboard=True)
    assert not list(tmp_path.iterdir())
