"""The directory of a training: locked, left as it was by a start that fails, never another's."""

import os

import pytest

from keras_transformer.errors import UserError
from keras_transformer.layouts import LOCK_FILE
from keras_transformer.training.checkpoints import training_lock
from tests.training.test_trainer import SMALL, run

pytestmark = [
    pytest.mark.tensorflow_only("`train` reads its data with tf.data"),
    pytest.mark.usefixtures("uncompiled"),
]


def test_a_second_training_is_refused_until_the_first_ends(tmp_path):
    with training_lock(tmp_path / "model"):
        with pytest.raises(UserError, match=f"in use by .*process {os.getpid()} on "):
            run(tmp_path / "model")
        assert [path.name for path in (tmp_path / "model").iterdir()] == [LOCK_FILE]
    with training_lock(tmp_path / "model"):
        pass


def test_no_link_in_the_directory_is_written_through(tmp_path):
    from keras_transformer.training import HistoryFile, TrainingSettings

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


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {**SMALL, "activation": "foo"}},
        {"gpus": 3},
    ],
    ids=["model", "devices"],
)
def test_a_start_that_fails_leaves_nothing_behind(tmp_path, changes):
    with pytest.raises(ValueError):
        run(tmp_path / "runs" / "model", **changes)
    assert not list(tmp_path.iterdir())


def test_a_first_step_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(model, *arguments, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("keras_transformer.training.LossModel.train_step", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(tmp_path / "model", tensorboard=True)
    assert not list(tmp_path.iterdir())
