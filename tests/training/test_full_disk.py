"""A full disk, or a limit on the size of files: one line, and the last checkpoint stays."""

import errno
import os
import resource
import shutil

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.training import average_checkpoints, checkpoints, save_weights_only
from tests.training.test_trainer import run


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


def test_an_average_without_room_leaves_the_earlier_one(tmp_path, file_limit):
    model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(100)])
    paths = [tmp_path / f"{number}.weights.h5" for number in range(2)]
    for path in paths:
        save_weights_only(model, path)
    output = average_checkpoints(paths, tmp_path / "mean.weights.h5")
    before = output.read_bytes()
    file_limit(10_000)
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        average_checkpoints(paths, output)
    file_limit(resource.RLIM_INFINITY)
    assert output.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("holder, name", [(checkpoints, "save_weights_only"), (np, "savez")])
def test_a_training_on_a_full_disk_is_one_line_and_goes_on_later(
    tmp_path, monkeypatch, holder, name
):
    """From the second checkpoint on there is no room."""
    write, calls = getattr(holder, name), []

    def full(*arguments, **options):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(holder, name, full)
        with pytest.raises(UserError, match="No space left.*checkpoint of step 3") as error:
            run(tmp_path)
    assert "\n" not in str(error.value)
    assert not [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")]
    lines = []
    assert run(tmp_path, lines).steps == 6
    assert any(line.startswith("Resuming after step 3") for line in lines)


@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.usefixtures("uncompiled")
def test_a_training_without_room_for_one_checkpoint_does_not_start(tmp_path, monkeypatch):
    usage = type(shutil.disk_usage(tmp_path))(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"needs 0\.\d MB and 0\.0 MB are free"):
        run(tmp_path / "model")
    assert not list(tmp_path.iterdir())
