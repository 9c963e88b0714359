"""Trees with line breaks, and drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.parsing import Tree, draw_tree, format_tree
from tests.treebank_data import EXAMPLES, trees

TREE = Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBD saw) (NP (-LRB- -LRB-) (NN cat))) (. .))")


def test_what_fits_stays_on_a_line():
    assert format_tree(TREE, width=len(str(TREE))) == str(TREE)
    assert format_tree(TREE, width=40) == (
        "(S\n"
        "  (NP (DT The) (NN dog))\n"
        "  (VP\n"
        "    (VBD saw)\n"
        "    (NP (-LRB- -LRB-) (NN cat)))\n"
        "  (. .))"
    )


@EXAMPLES
@given(trees(), st.integers(1, 100))
def test_it_is_the_same_tree_and_no_line_is_too_long_that_could_be_shorter(tree, width):
    text = format_tree(tree, width)
    assert Tree.parse(text) == tree
    for line in text.splitlines():
        # One opening bracket only (a label, or a leaf) cannot be broken.
        assert len(line) <= width or line.count("(") == 1


def test_the_drawing_has_a_line_for_each_constituent_and_word():
    assert draw_tree(TREE) == (
        "S\n"
        "├── NP\n"
        "│   ├── DT The\n"
        "│   └── NN dog\n"
        "├── VP\n"
        "│   ├── VBD saw\n"
        "│   └── NP\n"
        "│       ├── -LRB- (\n"
        "│       └── NN cat\n"
        "└── . ."
    )


@EXAMPLES
@given(trees())
def test_every_label_and_word_is_drawn_in_order(tree):
    lines = [line.lstrip("│├└─ ") for line in draw_tree(tree).split("\n")]
    expected = [
        f"{part.label} {part.word}" if part.is_leaf else part.label for part in tree.subtrees()
    ]
    assert lines == expected


@pytest.mark.parametrize("show", [format_tree, draw_tree])
def test_a_leaf_alone(show):
    assert show(Tree("NN", "dog")).strip("()") == "NN dog"
