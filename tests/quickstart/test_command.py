"""The command that quickstart prints at its end is one that the shell finds."""

import shutil
import sys

import pytest

from keras_transformer.cli.train import program


@pytest.mark.parametrize(
    "found, path, expected",
    [
        ("/usr/bin/keras-transformer", "keras-transformer", "keras-transformer"),
        (None, ".venv/bin/keras-transformer", ".venv/bin/keras-transformer"),
        (None, "cli/__main__.py", f"{sys.executable} -m keras_transformer.cli"),
    ],
)
def test_the_command_that_works_is_printed(monkeypatch, found, path, expected):
    monkeypatch.setattr(shutil, "which", lambda name: found)
    monkeypatch.setattr(sys, "argv", [path])
    assert program() == expected
