"""Trees: what they are made of, how they are read, written and drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import UserError
from keras_transformer.parsing import Tree, draw_tree, format_tree
from keras_transformer.parsing.trees import TreeReader
from tests.treebank_data import EXAMPLES, trees

TEXT = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
LONG = Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBD saw) (NP (-LRB- -LRB-) (NN cat))) (. .))")


def test_a_tree_has_labels_children_and_words():
    tree = Tree.parse(TEXT)
    noun_phrase, verb_phrase, stop = tree.children
    assert (tree.label, noun_phrase.label, verb_phrase.label) == ("S", "NP", "VP")
    assert (stop.is_leaf, stop.label, stop.word) == (True, ".", ".")
    assert (tree.is_leaf, tree.word) == (False, None)
    assert tree.words() == ["The", "dog", "barks", "."]
    assert tree.tags() == ["DT", "NN", "VBZ", "."]
    assert list(verb_phrase.leaves()) == [("VBZ", "barks")]


def test_subtrees_come_before_their_children_and_walk_says_where_they_end():
    tree = Tree.parse(TEXT.replace(" (. .)", ""))
    labels = [part.label for part in tree.subtrees()]
    assert labels == ["S", "NP", "DT", "NN", "VP", "VBZ"]
    ends = [part and part.label for part in tree.walk()]
    assert ends == ["S", "NP", "DT", "NN", None, "VP", "VBZ", None, None]


def test_equal_trees_are_equal_and_hash_alike():
    tree = Tree.parse(TEXT)
    assert tree == Tree.parse(TEXT) and hash(tree) == hash(Tree.parse(TEXT))
    changes = [("NP", "PP"), ("dog", "cat"), ("NN", "NNS"), (" (. .)", ""),
               ("(VP (VBZ barks)) (. .)", "(VP (VBZ barks) (. .))")]  # fmt: skip
    assert len({tree, *(Tree.parse(TEXT.replace(*change)) for change in changes)}) == 6
    assert tree != TEXT
    assert Tree("X", "a") != Tree("X", [Tree("a", "a")])


@pytest.mark.parametrize("tree, text", [
    (Tree("NP", [Tree("-LRB-", "("), Tree("NN", "f(x)"), Tree("-RRB-", ")")]),
     "(NP (-LRB- -LRB-) (NN f-LRB-x-RRB-) (-RRB- -RRB-))"),
    (Tree("NP", [Tree("NN", "New York")]), "(NP (NN New York))"),
    (Tree("", [Tree("NN", "dog")]), "( (NN dog))"),
])  # fmt: skip
def test_brackets_that_are_words_are_escaped_when_written(tree, text):
    assert str(tree) == text
    assert Tree.parse(text) == Tree.parse(text.replace(" ", "  ")) == tree


@EXAMPLES
@given(trees())
def test_what_is_written_is_read_again(tree):
    assert Tree.parse(str(tree)) == tree == eval(repr(tree))


def test_only_ascii_white_space_separates():
    text = "(NP\t(CD 5\u00a0000)\r\n\x0b(NN a\u2009b\u3000c))"
    assert Tree.parse(text).words() == ["5\u00a0000", "a\u2009b\u3000c"]


@pytest.mark.parametrize("text, message", [
    ("", "Expected one tree.* 0 trees"),
    (f"{TEXT} {TEXT}", "Expected one tree.* 2 trees"),
    ("(S (NN dog)", "ends within a tree.* 1 open"),
    ("(S (NN dog)))", "closing bracket too many"),
    ("(S (NN dog)) dog", "outside of brackets: 'dog'"),
    ("(S (NP) (NN dog))", r"nothing in the brackets '\(NP\)'"),
    ("(NP the (NN dog))", "word 'the' has no tag"),
    ("(S ( (NN dog)))", "has no label"),
])  # fmt: skip
def test_text_that_is_no_tree_is_an_error(text, message):
    with pytest.raises(UserError, match=message):
        Tree.parse(text)


@pytest.mark.parametrize("label, children, message", [
    ("N P", "dog", "label='N P'"),
    (None, "dog", "label=None"),
    ("", "dog", "label=''"),
    ("NN", " dog", "children=' dog'"),
    ("NN", "a\ndog", "children="),
    ("NP", [], r"children=\(\)"),
    ("NP", ["dog"], "children=.'dog',"),
])  # fmt: skip
def test_what_could_not_be_written_and_read_again_is_an_error(label, children, message):
    with pytest.raises(ValueError, match=f"Received: .*{message}"):
        Tree(label, children)


def test_a_reader_takes_text_in_pieces_and_gives_trees_where_they_end():
    reader = TreeReader()
    assert reader.feed("(S (NP (DT The)") == [] and reader.depth == 2
    first, second = reader.feed("(NN dog)))(S (UH Yes))(")
    assert (str(first), str(second)) == ("(S (NP (DT The) (NN dog)))", "(S (UH Yes))")
    assert reader.depth == 1
    assert reader.feed("S (UH No))") == [Tree.parse("(S (UH No))")]
    assert reader.depth == 0


def test_nothing_recurses():
    depth = 5_000
    text = "(S " * depth + "(UH Yes)" + ")" * depth
    tree = Tree.parse(text)
    assert str(tree) == text
    assert tree == Tree.parse(text) and hash(tree) == hash(Tree.parse(text))
    assert tree != Tree.parse(text.replace("Yes", "No"))
    assert tree.words() == ["Yes"]


def test_what_fits_stays_on_a_line():
    assert format_tree(LONG, width=len(str(LONG))) == str(LONG)
    assert format_tree(LONG, width=40) == (
        "(S\n"
        "  (NP (DT The) (NN dog))\n"
        "  (VP\n"
        "    (VBD saw)\n"
        "    (NP (-LRB- -LRB-) (NN cat)))\n"
        "  (. .))"
    )
    assert format_tree(Tree("NN", "dog")) == "(NN dog)"


def test_the_drawing_has_a_line_for_each_constituent_and_word():
    assert draw_tree(LONG) == (
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
    assert draw_tree(Tree("NN", "dog")) == "NN dog"


@EXAMPLES
@given(trees(), st.integers(1, 100))
def test_no_line_is_too_long_and_every_label_is_drawn(tree, width):
    text = format_tree(tree, width)
    assert Tree.parse(text) == tree
    for line in text.splitlines():
        # One opening bracket only (a label, or a leaf) cannot be broken.
        assert len(line) <= width or line.count("(") == 1
    drawn = [line.lstrip("│├└─ ") for line in draw_tree(tree).split("\n")]
    assert drawn == [
        f"{part.label} {part.word}" if part.is_leaf else part.label for part in tree.subtrees()
    ]
