"""Ctrl-C: one line at any time, also while the command is still importing."""

import subprocess
import sys

import pytest

# The finder interrupts the import of a module.
PROGRAM = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.argv[0] = "keras-transformer"
sys.meta_path.insert(0, Interrupt())
from keras_transformer.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [("keras_transformer.cli.vocab", ["translate"]), ("keras", ["train", "--print-config"])],
)
def test_ctrl_c_during_an_import_is_one_line(module, command):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, *command], capture_output=True, text=True
    )
    assert process.returncode == 130
    assert process.stderr.count("\n") == 1
    assert process.stderr.endswith("error: interrupted\n")
