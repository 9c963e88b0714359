"""Treebanks: files of trees, and cleaning."""

import gzip

import pytest
from hypothesis import given

from keras_transformer.errors import UserError
from keras_transformer.parsing import Tree, clean_tree, read_tree_lines, read_trees, write_trees
from tests.treebank_data import EXAMPLES, treebank_file, trees

ONE = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
TWO = "(NP (NNS cats))"


@pytest.fixture
def file_of(tmp_path):
    def write(text):
        path = tmp_path / "trees.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("text", [
    f"{ONE}\n{TWO}\n",
    f"{ONE}\n{TWO}",
    f"\n\n( {ONE} )\n\n(TOP {TWO})\n\n",
    f"(ROOT {ONE}) (S1 {TWO})\r\n",
    "( (S\n    (NP (DT The) (NN dog))\n    (VP (VBZ barks)) ))\n( (NP (NNS cats)\n))",
    f"\ufeff{ONE}\n{TWO}",
])  # fmt: skip
def test_trees_stand_on_a_line_or_on_several(file_of, text):
    assert list(read_trees(file_of(text))) == [Tree.parse(ONE), Tree.parse(TWO)]


def test_without_cleaning_a_tree_is_read_as_it_was_written(file_of):
    text = "( (S=2 (NP-SBJ-1 (-NONE- *T*-1)) (VP (VB Go) (-LRB- -LRB-))))"
    [tree] = read_trees(file_of(text), clean=False)
    assert str(tree) == text


def test_gzip_is_unpacked_and_packed(tmp_path):
    path = tmp_path / "trees.gz"
    write_trees(path, [Tree.parse(ONE), None, Tree.parse(TWO)])
    assert gzip.decompress(path.read_bytes()).decode() == f"{ONE}\n\n{TWO}\n"
    assert list(read_tree_lines(path)) == [Tree.parse(ONE), None, Tree.parse(TWO)]
    assert list(read_trees(path)) == [Tree.parse(ONE), Tree.parse(TWO)]


def test_a_line_without_a_tree_is_none(file_of):
    path = file_of(f"{ONE}\n\n(())\n()\n( ( ) ) \n( (NP (-NONE- *)))\n{TWO}")
    assert list(read_tree_lines(path)) == [Tree.parse(ONE), *[None] * 5, Tree.parse(TWO)]
    assert list(read_tree_lines(path, clean=False))[5] == Tree.parse("( (NP (-NONE- *)))")


@pytest.mark.parametrize("text, message", [
    (f"{ONE}\n\n{TWO})\n", "line 3: there is a closing bracket too many"),
    (f"{TWO}\n(S {ONE}\n\n", "line 2: the tree that begins here is not closed"),
    (f"(S {TWO}\n( {ONE})", r"line 2 \(the tree begins in line 1\): a bracket has no label"),
    (f"{ONE}\nand {TWO}", "line 2: there is text outside of brackets: 'and'"),
    ("(S\n(NP))", r"line 2 \(the tree begins in line 1\): there is nothing in .*'\(NP\)'"),
    (f"{ONE}\n( )", "line 2: there is nothing in the brackets"),
    ("(S (NP the (NN dog)))", "line 1: the word 'the' has no tag"),
    (f"{ONE}\n\n( (NP (-NONE- *)))", "line 3: the tree has no words"),
    (b"(NP (NN dog))\n(NP (NN d\xf6g))", "line 2: the text is not valid UTF-8"),
    ("", "has no trees"),
    ("\n \n", "has no trees"),
])  # fmt: skip
def test_an_error_names_the_file_and_the_line(file_of, text, message):
    with pytest.raises(UserError, match=rf"^'.*trees\.txt'.*{message}") as error:
        list(read_trees(file_of(text)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("line, message", [
    (f"{ONE} {TWO}", "line 2: expected one tree in brackets. Received: 2 trees"),
    ("(()", "line 2: there is nothing in the brackets"),
    ("(NP (NN dog)", "line 2: the text ends within a tree"),
    ("dog", "line 2: there is text outside of brackets"),
])  # fmt: skip
def test_a_line_that_is_no_tree_is_an_error(file_of, line, message):
    with pytest.raises(UserError, match=message):
        list(read_tree_lines(file_of(f"{ONE}\n{line}\n")))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match="File not found"):
        next(read_trees(tmp_path / "none"))


@pytest.mark.parametrize("text, expected", [
    # Traces, and constituents that hold nothing else.
    (
        "(S (NP (-NONE- *PRO*)) (VP (TO to) (VP (VB go) (SBAR (-NONE- 0) (S (-NONE- *))))))",
        "(S (VP (TO to) (VP (VB go))))",
    ),
    # Function tags and indices, of constituents and of words.
    (
        "(S-IMP (NP-SBJ-1 (NN=2 a)) (NP=2 (NN b)) (PP-LOC=3 (IN in)) (NP|PP-X (PRP$ my)))",
        "(S (NP (NN a)) (NP (NN b)) (PP (IN in)) (NP|PP (PRP$ my)))",
    ),
    ("(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))", "(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))"),
    ("(NP (-- --) (= =) (- -))", "(NP (-- --) (= =) (- -))"),
    # Roots.
    ("( (NP (NN a)))", "(NP (NN a))"),
    ("(TOP (NP (NN a)))", "(NP (NN a))"),
    ("(ROOT (S1 (NP (NN a))))", "(NP (NN a))"),
    ("( (NP (NN a)) (NP (NN b)))", "(TOP (NP (NN a)) (NP (NN b)))"),
    ("(ROOT (NP (NN a)) (. .))", "(TOP (NP (NN a)) (. .))"),
    ("( (NP (NN a)) (NP (-NONE- *)))", "(NP (NN a))"),
    ("( (NN a))", "(TOP (NN a))"),
    ("(NN a)", "(TOP (NN a))"),
    ("(S (TOP (NN a)))", "(S (TOP (NN a)))"),
    # A unary chain stays, also one of the same label.
    ("(NP (NP-SBJ (NP (NN a))))", "(NP (NP (NP (NN a))))"),
    ("(NP (NN New York) (NN a))", "(NP (NN New_York) (NN a))"),
])  # fmt: skip
def test_cleaning_leaves_what_a_parser_predicts(text, expected):
    cleaned = clean_tree(Tree.parse(text))
    assert str(cleaned) == expected
    assert clean_tree(cleaned) == cleaned


def test_a_tree_without_words_is_none():
    assert clean_tree(Tree.parse("( (S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None


@EXAMPLES
@given(trees())
def test_a_clean_tree_stays_as_it_is(tree):
    assert clean_tree(tree) == tree


def test_a_whole_treebank_is_read_without_loss():
    path = treebank_file("dev")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = [" ".join(line.replace("(", " ( ").replace(")", " ) ").split()) for line in file]
    written = [
        " ".join(str(tree).replace("(", " ( ").replace(")", " ) ").split())
        for tree in read_trees(path, clean=False)
    ]
    assert len(written) == 3471
    assert written == lines
