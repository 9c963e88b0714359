"""TreebankCorpus: pairs of words and symbols from a file of trees, all of them or a sample."""

import pytest

from keras_transformer.errors import UserError
from keras_transformer.parsing import Linearization, TreebankCorpus, clean_tree, read_trees
from tests.toy_treebank import toy_trees, write_toy_trees

TEXT = """\
( (S (NP-SBJ (PRP It))
     (VP (VBZ works) (-LRB- -LRB-) (ADVP (RB well)) (-RRB- -RRB-))) )

(FRAG (-NONE- *) (NP (NN fin)))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trees"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("options, symbols", [
    ({}, "(S (NP XX )NP (VP XX XX (ADVP XX )ADVP XX )VP )S"),
    ({"tags": True}, "(S (NP PRP )NP (VP VBZ -LRB- (ADVP RB )ADVP -RRB- )VP )S"),
    ({"words": True}, "(S (NP It )NP (VP works -LRB- (ADVP well )ADVP -RRB- )VP )S"),
    ({"labelled_closing": False}, "(S (NP XX ) (VP XX XX (ADVP XX ) XX ) )"),
])  # fmt: skip
def test_pairs_are_words_and_the_symbols_of_clean_trees(file, options, symbols):
    corpus = TreebankCorpus(file, Linearization(**options))
    first, second = corpus
    assert first == ("It works ( well )", symbols)
    assert second[0] == "fin"
    assert list(corpus) == [first, second]
    assert len(corpus) == 2


def test_trees_are_those_of_the_pairs(tmp_path):
    trees = toy_trees(50)
    corpus = TreebankCorpus(write_toy_trees(tmp_path / "trees", 50), limit=20)
    found = list(corpus.trees())
    assert [" ".join(tree.words()) for tree in found] == [source for source, _ in corpus]
    assert set(found) <= set(trees)
    assert all(clean_tree(tree) == tree for tree in found)


def test_a_sample_is_in_the_files_order_and_part_of_a_larger_one(tmp_path):
    everything = list(dict.fromkeys(map(str, toy_trees(300))))[:200]
    assert len(everything) == 200, "the test needs different trees"
    path = tmp_path / "trees"
    path.write_text("".join(f"{tree}\n" for tree in everything))
    samples = {}
    for limit in (5, 60, 200, 1000):
        corpus = TreebankCorpus(path, limit=limit, seed=3)
        samples[limit] = [everything.index(str(tree)) for tree in corpus.trees()]
        assert len(samples[limit]) == len(corpus) == min(limit, 200)
        assert samples[limit] == sorted(samples[limit])
    assert set(samples[5]) < set(samples[60]) < set(samples[200])
    assert samples[60] != list(range(60)), "not simply the first ones"
    assert samples[1000] == list(range(200))
    other = TreebankCorpus(path, limit=60, seed=4)
    assert list(other) != list(TreebankCorpus(path, limit=60, seed=3))


def test_every_tree_has_the_same_chance(tmp_path):
    path = write_toy_trees(tmp_path / "trees", 10)
    trees = [str(tree) for tree in read_trees(path)]
    counts = dict.fromkeys(trees, 0)
    for seed in range(300):
        (tree,) = TreebankCorpus(path, limit=1, seed=seed).trees()
        counts[str(tree)] += 1
    # 30 each on average, with a standard deviation of 5.2.
    assert min(counts.values()) > 10 and max(counts.values()) < 55


def test_a_word_alone_is_a_tree_too(tmp_path):
    path = tmp_path / "trees"
    path.write_text("(UH Oh)\n( (NN rain))\n")
    assert list(TreebankCorpus(path)) == [("Oh", "(TOP XX )TOP"), ("rain", "(TOP XX )TOP")]


@pytest.mark.parametrize("text, message", [
    ("(S (NP (NN a)))\n(S (NP the (NN b)))\n", "line 2: the word 'the' has no tag"),
    ("(S (NP (NN a)))\n(S (NP (NN b))\n", "line 2: the tree that begins here is not closed"),
    ("", "has no trees"),
])  # fmt: skip
@pytest.mark.parametrize("limit", [None, 1])
def test_a_mistake_is_named_with_its_place(tmp_path, text, message, limit):
    path = tmp_path / "some.trees"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        list(TreebankCorpus(path, limit=limit))
    assert "some.trees" in str(error.value)


def test_a_missing_file_is_named_at_once(tmp_path):
    with pytest.raises(UserError, match="no-such-file"):
        TreebankCorpus(tmp_path / "no-such-file")


def test_a_limit_is_positive(file):
    with pytest.raises(ValueError, match="Received: limit=0"):
        TreebankCorpus(file, limit=0)
