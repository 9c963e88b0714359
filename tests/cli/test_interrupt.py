"""Ctrl-C, SIGTERM, SIGHUP: one line, also while the command is importing, and no part of a file."""

import os
import signal
import subprocess
import sys

import pytest

from keras_transformer.inference.translator import Translator

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
    ("module", "command"),
    [
        ("keras_transformer.cli.translate", ["translate"]),
        ("keras", ["train", "--plan", "--preset", "tiny"]),
    ],
)
def test_a_signal_during_an_import_is_one_line(module, command, number):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, str(int(number)), *command],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 128 + number
    assert process.stderr.count("\n") == 1
    assert process.stderr.endswith("error: interrupted\n")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_leaves_no_part_of_an_output(run, model, sentences, tmp_path, monkeypatch, number):
    monkeypatch.setattr(Translator, "score", lambda *_, **__: os.kill(os.getpid(), number))
    before, handler = sorted(tmp_path.iterdir()), signal.getsignal(number)
    outcome = run("score", "--model", model, "--source", sentences, "--target", sentences,
                  "--output", tmp_path / "scores")  # fmt: skip
    assert outcome.status == 128 + number
    assert outcome.errors == "keras-transformer score: error: interrupted\n"
    assert sorted(tmp_path.iterdir()) == before
    assert signal.getsignal(number) is handler
