"""`benchmarks/reading.py` counts what a walk through the code enters."""

import pathlib
import sys

import keras_transformer
from keras_transformer.checks import check_choice
from tests.docs.public_names import load_script

PACKAGE = pathlib.Path(keras_transformer.__file__).parent


reading = load_script("benchmarks/reading.py")


def test_a_walk_counts_entered_functions_and_can_leave_out_a_room():
    with reading.Walk(PACKAGE) as walk:
        check_choice("name", "a", ("a", "b"))
    assert "check_choice" in {name for *_, name in walk.functions}
    with reading.Walk(PACKAGE, "layers") as walk:
        check_choice("name", "a", ("a", "b"))
    assert sys.getprofile() is None
    assert walk.counts() == (0, 0, 0)


def test_lines_of_code_have_no_docstrings_comments_and_blank_lines(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(
        '"""A module."""\n\n'
        "class A:\n"
        '    """A class."""\n\n'
        "    @property\n    def b(self):\n        # Why.\n        def inner():\n"
        "            return 1\n\n        return inner()\n"
    )
    functions, lines = reading.read(str(path))
    assert functions == [(6, 12, "A.b")]
    assert lines == {3, 6, 7, 9, 10, 12}


def test_the_attention_is_walked_and_the_house_is_measured():
    files, functions, lines = reading.attention_forward(PACKAGE).counts()
    assert 1 <= files <= functions < lines
    figures = dict(reading.house_figures(PACKAGE))
    assert figures["lines of code"] < figures["lines"]
    assert figures["files"] > 50 and figures["public classes"] > 30
