"""Everything that the ledger of the paper names exists, and every row says what shows it."""

import argparse
import inspect
import re

from keras_transformer import list_presets
from keras_transformer.cli.application import build_parser
from tests.docs.page_blocks import PAGES, ROOT
from tests.docs.public_names import public_members, public_methods

TEXT = PAGES["paper.md"].read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in TEXT.partition("## Training cost")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| paper |")
]
MEMBERS = {**public_members(), **public_methods()}
[_GROUP] = [x for x in build_parser()._actions if isinstance(x, argparse._SubParsersAction)]
# The options of each command.
COMMANDS = {name: set(parser._option_string_actions) for name, parser in _GROUP.choices.items()}
KNOWN = {name.rpartition(".")[2] for name in MEMBERS} | {"True", "keras.Model"}
KNOWN |= {
    name for x in filter(callable, MEMBERS.values()) for name in inspect.signature(x).parameters
}
KNOWN |= {*list_presets(), "table3_...", "tf.distribute.MirroredStrategy"}
TESTS = "".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))


def exists(name):
    path, _, test = name.partition("::")
    if re.match(r"(tests|benchmarks|examples)/", path):
        return (ROOT / path).is_file() and f"def {test}" in (ROOT / path).read_text("utf-8")
    if name.startswith("test_"):  # Of the file named before it.
        return f"def {name}(" in TESTS
    if name.startswith(("keras-transformer ", "--")):
        command, *options = name.removeprefix("keras-transformer ").split()
        options = [x for x in (command, *options) if x.startswith("--")]
        return set(options) <= COMMANDS.get(command, set().union(*COMMANDS.values()))
    arguments = re.findall(r"(\w+)=", name)
    name = re.split(r"[(=]", name)[0]
    # A text is a value of the argument before it.
    return {*arguments, name} <= KNOWN or name.rpartition(".")[2] in KNOWN or name.startswith('"')


def test_what_the_ledger_names_exists():
    names = {name for row in ROWS for cell in row[1:] for name in re.findall(r"`([^`]+)`", cell)}
    assert not [name for name in names if not exists(name)]
    for name in ("tests/layers/no.py::test", "NoLayer", "--no-such", "no_argument"):
        assert not exists(name)


def test_every_row_has_a_test_a_script_or_commands():
    assert len(ROWS) > 45
    for row in ROWS:
        assert len(row) == 3 and all(row)
        assert re.search(
            r"`(tests|benchmarks|examples)/|#what-a-cpu-cannot-run|`keras-tr", row[2]
        ), row
