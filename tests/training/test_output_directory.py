"""The directory of a training: locked, left as it was by a start that fails, never another's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.errors import UserError
from keras_transformer.layouts import LOCK_FILE
from keras_transformer.training.output_directory import training_lock
from tests.training.test_trainer import SMALL, run, settings

pytestmark = [
    pytest.mark.tensorflow_only("`train` reads its data with tf.data"),
    pytest.mark.usefixtures("uncompiled"),
]

ROOT = Path(__file__).parents[2]
HOLDER = """
import pathlib, sys, time
from keras_transformer.training.output_directory import training_lock

with training_lock(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of `tmp_path / "model"`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "model")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.slow
def test_a_second_training_is_refused_until_the_first_is_killed(tmp_path, holder):
    with pytest.raises(UserError, match=f"in use by .*process {holder.pid} on ") as error:
        run(tmp_path / "model")
    assert "\n" not in str(error.value)
    assert [path.name for path in (tmp_path / "model").iterdir()] == [LOCK_FILE]
    holder.kill()
    holder.wait()
    assert (tmp_path / "model" / LOCK_FILE).exists()
    with training_lock(tmp_path / "model"):
        assert f"process {os.getpid()} " in (tmp_path / "model" / LOCK_FILE).read_text()
        with pytest.raises(UserError, match=f"process {os.getpid()} "):
            with training_lock(tmp_path / "model"):
                pass
    assert not list((tmp_path / "model").iterdir())


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


def test_the_lock_removes_the_folders_that_it_made_if_they_stay_empty(tmp_path):
    with training_lock(tmp_path / "runs" / "model"):
        pass
    assert not list(tmp_path.iterdir())
    with training_lock(tmp_path / "runs" / "model"):
        (tmp_path / "runs" / "notes.txt").write_text("kept")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "name",
    ["history.csv", "tokenizer.txt", "target_tokenizer.model", "recipe.json", "model.weights.h5",
     "checkpoints/step-00000001.weights.h5", "diverged-batch.npz", "training.json"],
)  # fmt: skip
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
        {"bleu_every": 1, "bleu_tokenize": "?"},
    ],
    ids=["model", "devices", "tokenizer"],
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


@pytest.mark.slow
def test_a_directory_without_a_training_state(tmp_path):
    """One without a model is started over, with other settings too: no step of it is left."""
    from keras_transformer.data import SubwordTokenizer
    from keras_transformer.data.tokenizer_pair import TokenizerPair
    from keras_transformer.training.output_directory import start_directory

    old = settings(model={**SMALL, "d_model": 16}, shared_vocabulary=False)
    start_directory(tmp_path, TokenizerPair(SubwordTokenizer("a"), SubwordTokenizer("b")), old, {})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000900.weights.h5").write_text("of a run that was killed")
    assert run(tmp_path).steps == 6
    assert {path.name for path in tmp_path.glob("*tokenizer*")} == {"tokenizer.txt"}
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-00000003.weights.h5", "step-00000006.weights.h5"]

    # A finished model without its training state is not overwritten.
    for path in (tmp_path / "checkpoints").glob("state*"):
        path.unlink()
    before = (tmp_path / "model.weights.h5").read_bytes()
    with pytest.raises(UserError, match="cannot be trained further"):
        run(tmp_path, max_steps=7)
    assert (tmp_path / "model.weights.h5").read_bytes() == before
