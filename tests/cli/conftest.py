"""What the tests of the command line share: a way to call it, and a model directory."""

import collections
import shutil
from unittest.mock import create_autospec

import pytest

from keras_transformer.cli import main
from keras_transformer.training import estimates
from tests.loaded_once import load_once
from tests.tiny_parser import tiny_parser
from tests.tiny_translator import sentence, tiny_translator

Outcome = collections.namedtuple("Outcome", "status output errors")


@pytest.fixture
def run(capfd):
    """Calls the command line in this process."""

    def run_command(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        return Outcome(status, *capfd.readouterr())

    return run_command


@pytest.fixture
def succeed(run):
    """Calls a command that must succeed."""

    def run_command(*arguments):
        outcome = run(*arguments)
        assert outcome.status == 0, outcome.errors
        return outcome

    return run_command


@pytest.fixture
def refuse(run):
    """Calls a command that must fail; returns its error, which is one line."""

    def run_command(command, *arguments):
        outcome = run(command, *arguments)
        assert (outcome.status, outcome.output) == (2, ""), outcome.errors
        *notes, line = outcome.errors.splitlines()
        assert line.startswith(f"keras-transformer {command}: error: "), outcome.errors
        # These say what they chose before they go on to what takes long.
        notes = [note for note in notes if not note.startswith("Computing in ")]
        assert not notes or command in ("train", "prepare"), outcome.errors
        assert not any(": error: " in note for note in notes), outcome.errors
        return line

    return run_command


@pytest.fixture(scope="session")
def kept_translator_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / "model"
    return tiny_translator(max_source_length=40).save(directory)


@pytest.fixture(scope="session")
def kept_parser_directory(tmp_path_factory):
    return tiny_parser().save(tmp_path_factory.mktemp("parser") / "parser")


@pytest.fixture
def saved_model_directory(kept_translator_directory, monkeypatch):
    """A model directory, not to be changed, with a tiny model that reads at most 39 subwords."""
    load_once(monkeypatch, kept_translator_directory)
    return kept_translator_directory


@pytest.fixture
def parser_directory(kept_parser_directory, monkeypatch):
    """A model directory, not to be changed, with a tiny parser."""
    load_once(monkeypatch, kept_parser_directory)
    return kept_parser_directory


@pytest.fixture
def model(kept_translator_directory, tmp_path):
    """A copy of the translator's model directory that a test may damage."""
    return shutil.copytree(kept_translator_directory, tmp_path / "model")


@pytest.fixture
def text(tmp_path):
    """Writes a file of lines and returns its path."""

    def write(name, lines):
        path = tmp_path / name
        content = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def sentences(text):
    """A file of six sentences that the tiny model knows the words of."""
    return text("six.txt", [sentence(2 + seed, seed) for seed in range(6)])


@pytest.fixture
def unmeasured(monkeypatch):
    """Plans take the time of a step from here: measuring it would train a model."""

    def measure(config, recipe, tokens, *_):
        return 0.8 if recipe.optimizer == "muon" else 0.5, tokens

    measure = create_autospec(estimates.measure_step, side_effect=measure)
    monkeypatch.setattr(estimates, "measure_step", measure)
