"""Every command explains itself: options with their defaults, and an example, at once."""

import re
import subprocess
import sys

import pytest

import keras_transformer

COMMANDS = (
    "quickstart",
    "vocab",
    "prepare",
    "train",
    "translate",
    "evaluate",
    "attend",
    "score",
    "average",
    "export",
)


def test_the_main_help_lists_every_command(run):
    outcome = run("--help")
    assert outcome.status == 0
    for command in COMMANDS:
        assert re.search(rf"^ +{command}\s+\w", outcome.output, re.MULTILINE), command


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_it_does_and_shows_an_example(run, command):
    outcome = run(command, "--help")
    assert outcome.status == 0
    assert not outcome.errors
    assert f"\nexample:\n\n  keras-transformer {command}" in outcome.output
    assert max(map(len, outcome.output.splitlines())) <= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_described(run, command):
    options = run(command, "--help").output.split("\noptions:\n")[1].split("\nexample:")[0]
    for entry in re.split(r"\n(?=  -)", options):
        if entry.lstrip().startswith("--"):
            flag, _, description = re.sub(r"\s{2,}", "  ", entry.strip()).partition("  ")
            assert len(description) > 3, flag


def test_the_version_is_the_packages(run):
    assert run("--version").output == f"keras-transformer {keras_transformer.__version__}\n"


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


def test_no_command_is_an_error_in_one_line(run):
    outcome = run()
    assert outcome.status == 2
    assert outcome.errors.startswith("keras-transformer: error: a command is required")
    assert outcome.errors.count("\n") == 1


def test_help_does_not_wait_for_keras_and_tensorflow():
    command = [sys.executable, "-X", "importtime", "-m", "keras_transformer.cli", "train", "--help"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "keras_transformer.cli.settings" in imported
    assert not imported & {"keras", "tensorflow", "numpy"}
