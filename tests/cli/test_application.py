"""Every command explains itself at once; signals and errors of TensorFlow are one line."""

import errno
import os
import re
import signal
import subprocess
import sys

import pytest

from keras_transformer.cli.application import describe
from keras_transformer.inference.translator import Translator

COMMANDS = ("quickstart", "vocab", "prepare", "train", "translate", "score", "shortlist", "parse",
            "evaluate", "import", "attend", "average", "export", "serve")  # fmt: skip


def test_the_main_help_lists_every_command(succeed):
    listed = re.findall(r"^ +(\w+)(?=\s+\w)", succeed("--help").output, re.MULTILINE)
    assert set(COMMANDS) <= set(listed)


@pytest.mark.parametrize(
    ("arguments", "closed", "status"),
    [
        ("vocab --type subword --input {text} --output {text}.txt", "<&- >&- 2>&-", 0),
        ("evaluate --hypothesis {text} --reference {text}", ">&-", 2),
        ("--version", ">&-", 0),
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


@pytest.mark.parametrize("words", [["trainn"], ["translte", "--model", "m"], ["--verison"]])
def test_a_misspelt_command_gets_a_suggestion(run, words):
    meant = {"trainn": "train", "translte": "translate", "--verison": "--version"}[words[0]]
    outcome = run(*words)
    assert (outcome.status, outcome.output, outcome.errors.count("\n")) == (2, "", 1)
    assert outcome.errors.startswith("keras-transformer: error: unknown ")
    assert f"(did you mean {meant}?)" in outcome.errors


MISSING = """
translate --model {missing} TEXT -> not found
export --model {missing} --output {missing}.out -> not found
export --model {model} --output {missing}.out --format onnx -> pip install '.[onnx]'
import {folder} --output {missing}.out -> pip install torch
train --tsv {file} --valid-tsv {missing} --output {missing} -> not found
train --start-from {missing} --tsv {file} --output {missing} -> not found
train --tsv {file} --bleu-tokenize ja-mecab --output {missing} -> ja-mecab
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


def test_no_command_is_an_error_in_one_line(run):
    outcome = run()
    assert (outcome.status, outcome.errors.count("\n")) == (2, 1)
    assert outcome.errors.startswith("keras-transformer: error: a command is required")


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


# The finder interrupts the import of a module.
PROGRAM = """
import os, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

sys.argv[0] = "keras-transformer"
sys.meta_path.insert(0, Interrupt())
from keras_transformer.cli import main
sys.exit(main(sys.argv[3:]))
"""


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _signals_are_not_ignored():
    # A shell ignores SIGINT in its background jobs, and `nohup` ignores SIGHUP.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "words",
    ["keras_transformer.cli.translate {} translate", "keras {} train --plan --preset tiny"],
)
def test_a_signal_during_an_import_is_one_line(words, number):
    command = [sys.executable, "-c", PROGRAM, *words.format(int(number)).split()]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stderr.count("\n")) == (128 + number, 1)
    assert process.stderr.endswith(": interrupted\n")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_leaves_no_part_of_an_output(run, model, sentences, tmp_path, monkeypatch, number):
    monkeypatch.setattr(Translator, "score", lambda *_, **__: os.kill(os.getpid(), number))
    before, handler = sorted(tmp_path.iterdir()), signal.getsignal(number)
    outcome = run("score", "--model", model, "--source", sentences, "--target", sentences,
                  "--output", tmp_path / "scores")  # fmt: skip
    assert outcome.status == 128 + number
    assert outcome.errors == "keras-transformer score: interrupted\n"
    assert sorted(tmp_path.iterdir()) == before
    assert signal.getsignal(number) is handler


@pytest.mark.tensorflow_only("the error is one of TensorFlow")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("name", ["ResourceExhaustedError", "OutOfRangeError"])
def test_a_full_disk_is_named_with_the_file_and_not_as_memory(name, number):
    import tensorflow as tf

    reason = os.strerror(number)
    text = "{{function_node __wrapped__SaveV2_device_/job:localhost/device:CPU:0}} "
    text += f"/exports/en de/part-00000; {reason} [Op:SaveV2]"
    error = getattr(tf.errors, name)(None, None, text)
    assert describe(error) == f"{reason}: '/exports/en de/part-00000'"
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating [Op:Mul]")
    assert describe(error).startswith("out of memory; use a smaller --batch-size")
