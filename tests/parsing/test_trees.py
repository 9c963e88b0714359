"""Trees and treebanks: read, cleaned, written and drawn; a corpus is pairs of words and symbols."""

import gzip
import itertools

import pytest
from hypothesis import given

from keras_transformer.errors import UserError
from keras_transformer.parsing import (
    Linearization,
    Tree,
    TreebankCorpus,
    clean_tree,
    draw_tree,
    format_tree,
    read_tree_lines,
    read_trees,
    write_trees,
)
from tests.toy_treebank import toy_trees
from tests.treebank_data import EXAMPLES, treebank_file, trees

ONE = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
TWO = "(NP (NNS cats))"
LONG = Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBD saw) (NP (-LRB- -LRB-) (NN cat))) (. .))")


def test_a_tree_has_parts_and_equal_trees_are_equal():
    tree = Tree.parse(ONE)
    ends = [part and part.label for part in tree.walk()]
    assert ends == ["S", "NP", "DT", "NN", None, "VP", "VBZ", None, None]
    assert (tree.words(), tree.tags()) == (["The", "dog", "barks"], ["DT", "NN", "VBZ"])
    assert tree == Tree.parse(ONE) and hash(tree) == hash(Tree.parse(ONE))
    changes = ("NP", "PP"), ("dog", "cat"), ("(VP (VBZ barks)))", "(VBZ barks))")
    assert len({tree, *(Tree.parse(ONE.replace(*change)) for change in changes)}) == 4
    assert tree != ONE and Tree("X", "a") != Tree("X", [Tree("a", "a")])


@EXAMPLES
@given(trees())
def test_what_is_written_is_read_again(tree):
    assert Tree.parse(str(tree)) == tree == eval(repr(tree))
    assert Tree.parse(format_tree(tree, 20)) == tree


def test_only_ascii_white_space_separates_and_brackets_in_words_are_escaped():
    text = "(NP\t(CD 5\u00a0000)\r\n\x0b(NN a\u2009b\u3000c))"
    assert Tree.parse(text).words() == ["5\u00a0000", "a\u2009b\u3000c"]
    tree = Tree("", [Tree("NN", "f(x)"), Tree("NN", "New York")])
    assert str(tree) == "( (NN f-LRB-x-RRB-) (NN New York))"
    assert Tree.parse(str(tree).replace(" ", "  ")) == tree


@pytest.mark.parametrize("label, children, message", [
    ("N P", "dog", "label='N P'"),
    ("", "dog", "label=''"),
    ("NN", "a\ndog", "children="),
    ("NP", [], r"children=\(\)"),
])  # fmt: skip
def test_what_could_not_be_written_and_read_again_is_an_error(label, children, message):
    with pytest.raises(ValueError, match=f"Received: .*{message}"):
        Tree(label, children)


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


@pytest.fixture
def file_of(tmp_path):
    def write(text):
        path = tmp_path / "trees.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("text", [
    f"\n\n( {ONE} )\n\n(TOP {TWO})\n\n",
    "( (S\n    (NP (DT The) (NN dog))\n    (VP (VBZ barks)) ))\n( (NP (NNS cats)\n))",
    f"\ufeff{ONE}\n{TWO}",
])  # fmt: skip
def test_trees_stand_on_a_line_or_on_several(file_of, text):
    assert list(read_trees(file_of(text))) == [Tree.parse(ONE), Tree.parse(TWO)]


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


@pytest.mark.parametrize("read, text, message", [
    (read_trees, f"{ONE}\n\n{TWO})\n", "line 3: there is text outside of brackets"),
    (read_trees, f"{TWO}\n(S {ONE}\n\n", "line 2: the tree that begins here is not closed"),
    (read_trees, f"(S {TWO}\n( {ONE})",
     r"line 2 \(the tree begins in line 1\): a bracket has no label"),
    (read_trees, f"{ONE}\n(S (NP the (NN b)))\n", "line 2: the word 'the' has no tag"),
    (read_trees, f"{ONE}\n\n( (NP (-NONE- *)))", "line 3: the tree has no words"),
    (read_trees, b"(NP (NN dog))\n(NP (NN d\xf6g))", "line 2: the text is not valid UTF-8"),
    (read_trees, "", "has no trees"),
    (read_tree_lines, f"{ONE}\n(NP (NN dog)", "line 2: the text ends within a tree"),
    (read_tree_lines, f"{ONE}\n{ONE} {TWO}", "line 2: expected one tree in .* Received: 2 trees"),
])  # fmt: skip
def test_an_error_names_the_file_and_the_line(file_of, read, text, message):
    with pytest.raises(UserError, match=rf"^'.*trees\.txt'.*{message}") as error:
        list(read(file_of(text)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text, expected", [
    # Traces, and constituents that hold nothing else.
    ("(S (NP (-NONE- *PRO*)) (VP (TO to) (VP (VB go) (SBAR (-NONE- 0) (S (-NONE- *))))))",
     "(S (VP (TO to) (VP (VB go))))"),
    # Function tags and indices, of constituents and of words.
    ("(S-IMP (NP-SBJ-1 (NN=2 a)) (NP=2 (NN b)) (PP-LOC=3 (IN in)) (NP|PP-X (PRP$ my)))",
     "(S (NP (NN a)) (NP (NN b)) (PP (IN in)) (NP|PP (PRP$ my)))"),
    ("(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))", "(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))"),
    # Roots.
    ("(ROOT (S1 (NP (NN a))))", "(NP (NN a))"),
    ("( (NP (NN a)) (NP (NN b)))", "(TOP (NP (NN a)) (NP (NN b)))"),
    ("( (NN a))", "(TOP (NN a))"),
    # A unary chain stays, also one of the same label.
    ("(NP (NP-SBJ (NP (NN New York))))", "(NP (NP (NP (NN New_York))))"),
])  # fmt: skip
def test_cleaning_leaves_what_a_parser_predicts(text, expected):
    cleaned = clean_tree(Tree.parse(text))
    assert str(cleaned) == expected and clean_tree(cleaned) == cleaned
    assert clean_tree(Tree.parse("( (S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None


def spaced(text):
    return " ".join(text.replace("(", " ( ").replace(")", " ) ").split())


def test_a_treebank_is_read_without_loss():
    path = treebank_file("dev")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = list(map(spaced, itertools.islice(file, 500)))
    trees = itertools.islice(read_trees(path, clean=False), 500)
    assert [spaced(str(tree)) for tree in trees] == lines


@pytest.mark.parametrize("options, symbols", [
    ({}, "(S (NP XX )NP (VP XX XX (ADVP XX )ADVP XX )VP )S"),
    ({"words": True}, "(S (NP It )NP (VP works -LRB- (ADVP well )ADVP -RRB- )VP )S"),
])  # fmt: skip
def test_pairs_are_words_and_the_symbols_of_clean_trees(file_of, options, symbols):
    tree = "( (S (NP-X (PRP It))\n (VP (VBZ works) (-LRB- -LRB-) (ADVP (RB well)) (-RRB- -RRB-))))"
    corpus = TreebankCorpus(file_of(f"{tree}\n\n(UH Oh)\n"), Linearization(**options))
    first, second = corpus
    assert first == ("It works ( well )", symbols)
    assert second[0] == "Oh" and second[1].startswith("(TOP ")
    assert list(corpus) == [first, second] and len(corpus) == 2


def test_a_sample_is_in_the_files_order_and_part_of_a_larger_one(tmp_path):
    everything = list(dict.fromkeys(map(str, toy_trees(70))))[:50]
    path = tmp_path / "trees"
    path.write_text("".join(f"{tree}\n" for tree in everything))
    samples = []
    for limit in (5, 30):
        corpus = TreebankCorpus(path, limit=limit, seed=3)
        samples.append([everything.index(str(tree)) for tree in corpus.trees()])
        assert len(samples[-1]) == len(corpus) == limit and samples[-1] == sorted(samples[-1])
    assert set(samples[0]) < set(samples[1]) and samples[1] != list(range(30))
    with pytest.raises(ValueError, match="Received: limit=0"):
        TreebankCorpus(path, limit=0)
