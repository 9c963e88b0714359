"""Every command explains itself at once; signals and errors of TensorFlow are one line."""

import errno
import os
import platform
import signal
import subprocess
import sys

import pytest

from keras_transformer.cli import backend
from keras_transformer.cli.application import describe
from keras_transformer.inference.translator import Translator


@pytest.mark.parametrize(
    ("arguments", "closed", "status"),
    [
        ("vocab --type subword --input {text} --output {text}.txt", "<&- >&- 2>&-", 0),
        ("evaluate --hypothesis {text} --reference {text}", ">&-", 2),
        ("--version", "> /dev/full", 0),
    ],
)
def test_closed_standard_streams(text, arguments, closed, status):
    """As under a service manager; an answer that nobody can read is one line."""
    path = text("text.txt", ["a b"])
    command = f"{sys.executable} -m keras_transformer.cli {arguments.format(text=path)} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (status, int(status > 0)), done.stderr
    assert "NoneType" not in done.stderr
    assert not status or done.stderr.endswith(" error: standard output is closed\n")


@pytest.mark.parametrize(
    "words, error",
    [
        ([], "a command is required"),
        (["translte", "--model", "m"], "unknown command 'translte' (did you mean translate?)"),
        (["--verison"], "unknown option --verison (did you mean --version?)"),
    ],
)
def test_a_missing_or_misspelt_command_is_an_error_in_one_line(run, words, error):
    outcome = run(*words)
    assert (outcome.status, outcome.output, outcome.errors.count("\n")) == (2, "", 1)
    assert outcome.errors.startswith(f"keras-transformer: error: {error}")


MISSING = """
translate --model {missing} TEXT -> not found
export --model {model} --output {missing}.out --format onnx -> pip install '.[onnx]'
import {folder} --output {missing}.out -> pip install torch
train --start-from {missing} --tsv {file} --output {missing} -> not found
train --tsv {file} --bleu-tokenize ja-mecab --output {missing} -> ja-mecab
evaluate --hypothesis {file} --reference {file} --tokenize ja-mecab -> sacrebleu[ja]
quickstart --output {missing} --saved-model {folder} -> without other files
"""


@pytest.mark.parametrize("line", MISSING.strip().splitlines())
def test_what_is_missing_is_said_before_tensorflow_is_loaded(
    refuse, kept_translator_directory, text, tmp_path, monkeypatch, line
):
    def load_backend():
        raise AssertionError("TensorFlow takes many seconds")

    monkeypatch.setattr("keras_transformer.cli.backend._hidden_standard_error", load_backend)
    for package in ("onnx", "torch", "MeCab", "fugashi"):
        monkeypatch.setitem(sys.modules, package, None)
    folder = tmp_path / "marian"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "marian"}')
    (folder / "pytorch_model.bin").touch()
    command, _, part = line.partition(" -> ")
    names = {"missing": tmp_path / "no-such", "model": kept_translator_directory, "folder": folder}
    names["file"] = text("pairs.tsv", [f"{number}\tb" for number in range(3)])
    assert part in refuse(*command.format(**names).split())


@pytest.mark.parametrize(
    "words, needed, slow",
    [
        (["train", "--help"], "keras_transformer.cli.settings", {"keras", "tensorflow", "numpy"}),
        (["--help"], "keras_transformer.cli.arguments", {"keras", "tensorflow", "numpy", "tqdm"}),
    ],
)
def test_help_does_not_wait_for_keras_and_tensorflow(words, needed, slow):
    command = [sys.executable, "-X", "importtime", "-m", "keras_transformer.cli", *words]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert needed in imported
    assert not imported & slow


def test_a_signal_leaves_no_part_of_an_output(run, model, sentences, tmp_path, monkeypatch):
    number = signal.SIGTERM
    monkeypatch.setattr(Translator, "score", lambda *_, **__: os.kill(os.getpid(), number))
    before, handler = sorted(tmp_path.iterdir()), signal.getsignal(number)
    outcome = run("score", "--model", model, "--source", sentences, "--target", sentences,
                  "--output", tmp_path / "scores")  # fmt: skip
    assert outcome.status == 128 + number
    assert outcome.errors == "keras-transformer score: interrupted\n"
    assert sorted(tmp_path.iterdir()) == before
    assert signal.getsignal(number) is handler


@pytest.mark.tensorflow_only("the error is one of TensorFlow")
def test_a_full_disk_is_named_with_the_file_and_not_as_memory():
    import tensorflow as tf

    reason = os.strerror(errno.ENOSPC)
    text = "{{function_node __wrapped__SaveV2_device_/job:localhost/device:CPU:0}} "
    text += f"/exports/en de/part-00000; {reason} [Op:SaveV2]"
    error = tf.errors.ResourceExhaustedError(None, None, text)
    assert describe(error) == f"{reason}: '/exports/en de/part-00000'"
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating [Op:Mul]")
    assert describe(error) == (
        "out of memory; use a smaller --batch-size, or --micro-batches 2 or more in training"
    )


@pytest.mark.parametrize(
    "machine, given, used",
    [("x86_64", None, "1"), ("AMD64", None, "1"), ("x86_64", "0", "0"), ("aarch64", None, None)],
)
def test_onednn_is_on_where_it_is_faster(machine, given, used, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if given is not None:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", given)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(backend, "_keep_freed_memory", lambda: None)
    backend.load_backend()
    assert os.environ.get("TF_ENABLE_ONEDNN_OPTS") == used
