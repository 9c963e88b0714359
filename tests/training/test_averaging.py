"""average_checkpoints: the mean of weights, and of nothing else; bad files in one line."""

import pathlib

import h5py
import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.training import average_checkpoints, save_weights_only
from tests.closeness import assert_close


def make_model(units=3):
    return keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(units), keras.layers.Dropout(0.5, seed=1)]
    )


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    model, values, paths = make_model(), [], []
    for number in range(3):
        weights = [generator.normal(size=weight.shape) for weight in model.weights]
        model.set_weights(weights)
        path = tmp_path / f"{number}.weights.h5"
        model.save_weights(path)
        values.append(weights)
        paths.append(path)
    return paths, values


@pytest.mark.parametrize("number, output", [
    (3, "new/mean.weights.h5"), (1, "mean.weights.h5"), (3, "0.weights.h5"),
])  # fmt: skip
def test_weights_are_the_mean_and_integers_those_of_the_last_file(files, tmp_path, number, output):
    """The output may be one of the inputs."""
    paths, values = (of_all[:number] for of_all in files)
    for n, path in enumerate(paths):
        with h5py.File(path, "r+") as file:
            file["layers/seeds"] = np.array([n, 7], "uint32")
    output = average_checkpoints(paths, tmp_path / output)
    model = make_model()
    model.load_weights(output)
    for weight, *each in zip(model.get_weights(), *values, strict=True):
        assert_close(weight, np.mean(each, axis=0))
    with h5py.File(output) as file:
        assert file["layers/seeds"][...].tolist() == [number - 1, 7]


def test_weight_files_of_compiled_models_hold_no_optimizer(tmp_path):
    model = make_model()
    model.compile("adam", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0)
    save_weights_only(model, tmp_path / "a.weights.h5")
    names = []
    with h5py.File(tmp_path / "a.weights.h5") as file:
        file.visit(names.append)
    assert not [name for name in names if "optimizer" in name]
    assert model.optimizer.iterations.numpy() == 1


def test_weights_in_bfloat16_are_the_mean(tmp_path):
    """HDF5 has no such numbers; beside them, the model has weights in float32."""
    layers = keras.layers.Dense(3, dtype="bfloat16"), keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((2,)), *layers])
    paths = [tmp_path / f"{number}.weights.h5" for number in range(2)]
    for path, value in zip(paths, (1.0, 4.0), strict=True):
        model.set_weights([np.full(weight.shape, value) for weight in model.weights])
        model.save_weights(path)
    model.load_weights(average_checkpoints(paths, tmp_path / "mean.weights.h5"))
    for weight in model.weights:
        assert set(keras.ops.convert_to_numpy(weight).ravel().tolist()) == {2.5}
    assert {weight.dtype for weight in model.weights} == {"bfloat16", "float32"}


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def huge(path):
    """An array of 36 TB without values, which takes a few bytes."""
    with h5py.File(path, "r+") as file:
        file.create_dataset("layers/huge", shape=(10**13,), dtype="float32")


def other_model(path):
    make_model(4).save_weights(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (pathlib.Path.unlink, "missing or damaged"),
        (truncate, "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (huge, "damaged"),
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
