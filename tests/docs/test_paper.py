"""Everything that the ledger of the paper names exists, and every row says what shows it."""

import argparse
import functools
import inspect
import re

from keras_transformer import list_presets
from keras_transformer.cli.application import build_parser
from keras_transformer.cli.settings import all_experiments
from tests.docs.page_blocks import PAGES, ROOT
from tests.docs.public_names import public_members, public_methods

TEXT = PAGES["paper.md"].read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in TEXT.partition("## Training cost")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| paper |")
]
NAMES = {name for row in ROWS for cell in row[1:] for name in re.findall(r"`([^`]+)`", cell)}
MEMBERS = {**public_members(), **public_methods()}
[_GROUP] = [x for x in build_parser()._actions if isinstance(x, argparse._SubParsersAction)]
# The options of each command.
COMMANDS = {name: set(parser._option_string_actions) for name, parser in _GROUP.choices.items()}


@functools.cache
def public_arguments():
    """The arguments of public classes and functions, which settings declare too."""
    members = filter(callable, MEMBERS.values())
    return {name for member in members for name in inspect.signature(member).parameters}


def exists(name):
    if name.startswith("test_"):  # of the file named before it
        texts = (path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))
        return any(f"def {name}(" in text for text in texts)
    if name.startswith("tests/"):
        path, _, test = name.partition("::")
        return (ROOT / path).is_file() and f"def {test}" in (ROOT / path).read_text("utf-8")
    if name.startswith(("benchmarks/", "examples/")):
        return (ROOT / name).is_file()
    if name.startswith("keras-transformer "):
        _, command, *options = name.split()
        return set(options) <= COMMANDS[command]
    if name.startswith("--"):
        option, *values = name.split()
        known = any(option in options for options in COMMANDS.values())
        return known and (option != "--experiment" or set(values) <= set(all_experiments()))
    if name in list_presets() or name.endswith("..."):
        return any(one.startswith(name.rstrip(".")) for one in list_presets())
    if name.startswith('"'):
        return True  # a value of the argument before it
    last = name.partition("(")[0].rpartition(".")[2]
    if any(member.rpartition(".")[2] == last for member in MEMBERS):
        arguments = re.findall(r"(\w+)=", name)
        return set(arguments) <= public_arguments()
    return name.partition("=")[0] in public_arguments() | {"True"}


def test_there_are_rows_for_every_section():
    assert len(ROWS) > 45
    assert all(len(row) == 3 and all(row) for row in ROWS)


def test_what_the_ledger_names_exists():
    others = {"keras.Model", "tf.distribute.MirroredStrategy"}
    assert not [name for name in NAMES if not exists(name) and name not in others]
    for name in ("tests/layers/no.py::test", "NoLayer", "--no-such", "no_argument"):
        assert not exists(name)


def test_every_row_has_a_test_a_script_or_commands():
    for row in ROWS:
        proof = row[2].replace("::", "` ")
        shown = re.findall(r"`(?:[a-z_/0-9]+\.py|test_|keras-transformer )", proof)
        assert shown or "(#what-a-cpu-cannot-run)" in row[2], row
        if "†" in row[0]:
            assert "hours" in row[2] or shown, row
