"""Treebanks: files of trees, cleaning, and `TreebankCorpus`, pairs of words and symbols."""

import gzip

import pytest

from keras_transformer.errors import UserError
from keras_transformer.parsing import (
    Linearization,
    Tree,
    TreebankCorpus,
    clean_tree,
    read_tree_lines,
    read_trees,
    write_trees,
)
from tests.toy_treebank import toy_trees
from tests.treebank_data import treebank_file

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
    f"\n\n( {ONE} )\n\n(TOP {TWO})\n\n",
    f"(ROOT {ONE}) (S1 {TWO})\r\n",
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
    (read_trees, f"{ONE}\n\n{TWO})\n", "line 3: there is a closing bracket too many"),
    (read_trees, f"{TWO}\n(S {ONE}\n\n", "line 2: the tree that begins here is not closed"),
    (read_trees, f"(S {TWO}\n( {ONE})",
     r"line 2 \(the tree begins in line 1\): a bracket has no label"),
    (read_trees, f"{ONE}\nand {TWO}", "line 2: there is text outside of brackets: 'and'"),
    (read_trees, "(S\n(NP))",
     r"line 2 \(the tree begins in line 1\): there is nothing in .*'\(NP\)'"),
    (read_trees, f"{ONE}\n\n( (NP (-NONE- *)))", "line 3: the tree has no words"),
    (read_trees, b"(NP (NN dog))\n(NP (NN d\xf6g))", "line 2: the text is not valid UTF-8"),
    (read_trees, "", "has no trees"),
    (read_tree_lines, f"{ONE}\n{ONE} {TWO}", "line 2: expected one tree in .* Received: 2 trees"),
    (read_tree_lines, f"{ONE}\n(NP (NN dog)", "line 2: the text ends within a tree"),
])  # fmt: skip
def test_an_error_names_the_file_and_the_line(file_of, read, text, message):
    with pytest.raises(UserError, match=rf"^'.*trees\.txt'.*{message}") as error:
        list(read(file_of(text)))
    assert "\n" not in str(error.value)


def test_a_missing_file_and_an_empty_sample_are_errors(tmp_path, file_of):
    with pytest.raises(UserError, match="File not found"):
        next(read_trees(tmp_path / "none"))
    with pytest.raises(UserError, match="no-such-file"):
        TreebankCorpus(tmp_path / "no-such-file")
    with pytest.raises(ValueError, match="Received: limit=0"):
        TreebankCorpus(file_of(ONE), limit=0)


@pytest.mark.parametrize("text, expected", [
    # Traces, and constituents that hold nothing else.
    ("(S (NP (-NONE- *PRO*)) (VP (TO to) (VP (VB go) (SBAR (-NONE- 0) (S (-NONE- *))))))",
     "(S (VP (TO to) (VP (VB go))))"),
    # Function tags and indices, of constituents and of words.
    ("(S-IMP (NP-SBJ-1 (NN=2 a)) (NP=2 (NN b)) (PP-LOC=3 (IN in)) (NP|PP-X (PRP$ my)))",
     "(S (NP (NN a)) (NP (NN b)) (PP (IN in)) (NP|PP (PRP$ my)))"),
    ("(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))", "(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))"),
    # Roots.
    ("(TOP (NP (NN a)))", "(NP (NN a))"),
    ("(ROOT (S1 (NP (NN a))))", "(NP (NN a))"),
    ("( (NP (NN a)) (NP (NN b)))", "(TOP (NP (NN a)) (NP (NN b)))"),
    ("( (NP (NN a)) (NP (-NONE- *)))", "(NP (NN a))"),
    ("( (NN a))", "(TOP (NN a))"),
    ("(S (TOP (NN a)))", "(S (TOP (NN a)))"),
    # A unary chain stays, also one of the same label.
    ("(NP (NP-SBJ (NP (NN a))))", "(NP (NP (NP (NN a))))"),
    ("(NP (NN New York) (NN a))", "(NP (NN New_York) (NN a))"),
])  # fmt: skip
def test_cleaning_leaves_what_a_parser_predicts(text, expected):
    cleaned = clean_tree(Tree.parse(text))
    assert str(cleaned) == expected
    assert clean_tree(cleaned) == cleaned
    assert clean_tree(Tree.parse("( (S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None


def spaced(text):
    return " ".join(text.replace("(", " ( ").replace(")", " ) ").split())


def test_a_whole_treebank_is_read_without_loss():
    path = treebank_file("dev")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = list(map(spaced, file))
    written = [spaced(str(tree)) for tree in read_trees(path, clean=False)]
    assert len(written) == 3471 and written == lines


@pytest.mark.parametrize("options, symbols", [
    ({}, "(S (NP XX )NP (VP XX XX (ADVP XX )ADVP XX )VP )S"),
    ({"tags": True}, "(S (NP PRP )NP (VP VBZ -LRB- (ADVP RB )ADVP -RRB- )VP )S"),
    ({"words": True}, "(S (NP It )NP (VP works -LRB- (ADVP well )ADVP -RRB- )VP )S"),
    ({"labelled_closing": False}, "(S (NP XX ) (VP XX XX (ADVP XX ) XX ) )"),
])  # fmt: skip
def test_pairs_are_words_and_the_symbols_of_clean_trees(file_of, options, symbols):
    tree = "( (S (NP-X (PRP It))\n (VP (VBZ works) (-LRB- -LRB-) (ADVP (RB well)) (-RRB- -RRB-))))"
    corpus = TreebankCorpus(file_of(f"{tree}\n\n(UH Oh)\n"), Linearization(**options))
    first, second = corpus
    assert first == ("It works ( well )", symbols)
    assert second[0] == "Oh" and second[1].startswith("(TOP ")
    assert list(corpus) == [first, second] and len(corpus) == 2


def test_a_sample_is_in_the_files_order_and_part_of_a_larger_one(tmp_path):
    everything = list(dict.fromkeys(map(str, toy_trees(150))))[:100]
    path = tmp_path / "trees"
    path.write_text("".join(f"{tree}\n" for tree in everything))
    samples = {}
    for limit in (5, 30, 100, 1000):
        corpus = TreebankCorpus(path, limit=limit, seed=3)
        trees = list(corpus.trees())
        assert [" ".join(tree.words()) for tree in trees] == [source for source, _ in corpus]
        samples[limit] = [everything.index(str(tree)) for tree in trees]
        assert len(samples[limit]) == len(corpus) == min(limit, 100)
        assert samples[limit] == sorted(samples[limit])
    assert set(samples[5]) < set(samples[30]) < set(samples[100])
    assert samples[30] != list(range(30)), "not simply the first ones"
    assert samples[1000] == list(range(100))
    other = TreebankCorpus(path, limit=30, seed=4)
    assert list(other) != list(TreebankCorpus(path, limit=30, seed=3))


@pytest.mark.parametrize("limit", [None, 1])
def test_a_mistake_in_a_corpus_is_named_with_its_place(file_of, limit):
    with pytest.raises(UserError, match="trees.txt', line 2: the word 'the' has no tag"):
        list(TreebankCorpus(file_of(f"{ONE}\n(S (NP the (NN b)))\n"), limit=limit))
