"""Any symbols at all become a tree over the words of the sentence."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.parsing import Linearization, Tree
from tests.treebank_data import EXAMPLES, LABELS, trees

WAYS = [
    Linearization(words, tags, labelled)
    for words, tags, labelled in itertools.product([False, True], repeat=3)
]
SOUP = st.lists(
    st.sampled_from(
        [f"({label}" for label in LABELS]
        + [f"){label}" for label in LABELS]
        + ["(NN", ")NN", ")", "XX", "NN", "a", "b", "-LRB-", "(", "", "((", "(S)", "a b", "<unk>"]
    ),
    max_size=40,
)
SENTENCE = st.lists(st.sampled_from(["a", "b", "(", "XX"]), min_size=1, max_size=8)


@pytest.mark.parametrize("linearization", WAYS, ids=str)
@EXAMPLES
@given(symbols=SOUP, words=SENTENCE)
def test_any_soup_becomes_a_tree_over_the_words(linearization, symbols, words):
    rebuilt = linearization.rebuild(symbols, words)
    assert rebuilt.tree.words() == words
    assert not rebuilt.tree.is_leaf
    assert Tree.parse(str(rebuilt.tree)) == rebuilt.tree
    assert linearization.rebuild(symbols, words) == rebuilt
    # Well-formed are the sequences of trees, and no others.
    is_unchanged = linearization.to_symbols(rebuilt.tree) == symbols
    assert rebuilt.is_well_formed == is_unchanged


def spans(symbols, words):
    """Label, first word and end of each constituent that the symbols themselves close."""
    stack, found, position = [], [], 0
    for symbol in symbols:
        if symbol.startswith("("):
            stack.append((symbol[1:], position))
        elif symbol.startswith(")"):
            found.append((*stack.pop(), position))
        else:
            position += 1
    return found


@EXAMPLES
@given(tree=trees(), data=st.data())
def test_what_is_complete_in_a_truncated_sequence_is_in_the_tree(tree, data):
    linearization, words = Linearization(), tree.words()
    symbols = linearization.to_symbols(tree)
    kept = symbols[: data.draw(st.integers(0, len(symbols)))]
    rebuilt = linearization.rebuild(kept, words)
    assert rebuilt.is_well_formed == (kept == symbols)
    found = spans(linearization.to_symbols(rebuilt.tree), words)
    for span in spans(kept, words):
        found.remove(span)


@pytest.mark.parametrize(
    "symbols, expected, num_repairs",
    [
        ("(S (NP XX )NP XX XX )S", "(S (NP (XX a)) (XX b) (XX c))", 0),
        # Nothing is known: the default root; each of three words is missing, the root twice.
        ("", "(S (XX a) (XX b) (XX c))", 5),
        ("(NP", "(NP (XX a) (XX b) (XX c))", 4),
        # Unknown symbols are left out.
        ("(S <unk> XX (( XX XX )S", "(S (XX a) (XX b) (XX c))", 2),
        # A word before any opening symbol.
        ("XX (NP XX XX )NP )S", "(S (XX a) (NP (XX b) (XX c)))", 1),
        ("XX (NP XX XX )NP", "(S (XX a) (NP (XX b) (XX c)))", 2),
        # A closing symbol closes all within.
        ("(S (NP (PP XX )NP XX XX )S", "(S (NP (PP (XX a))) (XX b) (XX c))", 1),
        ("(S (NP (NP XX )NP XX XX )S", "(S (NP (NP (XX a)) (XX b) (XX c)))", 1),
        # One of a label that is not open closes the innermost.
        ("(S (NP XX )VP XX XX )S", "(S (NP (XX a)) (XX b) (XX c))", 1),
        (")NP (S XX XX XX )S", "(S (XX a) (XX b) (XX c))", 1),
        ("(S (NP XX ) XX XX )S", "(S (NP (XX a)) (XX b) (XX c))", 1),
        # What follows the root is put into it.
        ("(S XX )S (NP XX XX )NP", "(S (XX a) (NP (XX b) (XX c)))", 2),
        ("(S XX )S (NP XX XX )NP )S", "(S (XX a) (NP (XX b) (XX c)))", 1),
        ("(S XX XX XX )S )S )NP", "(S (XX a) (XX b) (XX c))", 2),
        # Words too many, and too few: in the root, or in what is still open.
        ("(S (NP XX XX )NP XX XX )S", "(S (NP (XX a) (XX b)) (XX c))", 1),
        ("(S XX XX XX )S XX", "(S (XX a) (XX b) (XX c))", 1),
        ("(S (NP XX )NP )S", "(S (NP (XX a)) (XX b) (XX c))", 2),
        ("(S (NP XX )NP (VP XX", "(S (NP (XX a)) (VP (XX b) (XX c)))", 3),
        # Constituents without words, also a root.
        ("(S (NP )NP XX XX XX )S", "(S (XX a) (XX b) (XX c))", 1),
        ("(S (NP (PP )PP )NP XX XX XX )S", "(S (XX a) (XX b) (XX c))", 2),
        ("(NP )NP (S XX XX XX )S", "(S (XX a) (XX b) (XX c))", 1),
        ("(S XX XX XX (NP", "(S (XX a) (XX b) (XX c))", 3),
    ],
)
def test_each_repair(symbols, expected, num_repairs):
    rebuilt = Linearization().rebuild(symbols.split(), ["a", "b", "c"])
    assert (str(rebuilt.tree), rebuilt.num_repairs) == (expected, num_repairs)


@pytest.mark.parametrize(
    "symbols, expected, num_repairs",
    [
        ("(S (NP 0 )NP 1 2 )S", "(S (NP (XX a)) (XX b) (XX c))", 0),
        # The next word is meant, whatever stands there.
        ("(S (NP 0 )NP 2 2 )S", "(S (NP (XX a)) (XX b) (XX c))", 1),
        ("(S (NP 100 )NP XX 2 )S", "(S (NP (XX a)) (XX b) (XX c))", 2),
        ("(S (NP 0 )NP 1 2 3 )S", "(S (NP (XX a)) (XX b) (XX c))", 1),
    ],
)
def test_numbers_of_words(symbols, expected, num_repairs):
    rebuilt = Linearization(numbers=True).rebuild(symbols.split(), ["a", "b", "c"])
    assert (str(rebuilt.tree), rebuilt.num_repairs) == (expected, num_repairs)


def test_the_default_root_is_a_setting():
    assert Linearization(root_label="TOP").to_tree([], ["a"]).label == "TOP"


@pytest.mark.parametrize(
    "symbols, expected, num_repairs",
    [
        ("(S (NP XX ) XX XX )", "(S (NP (XX a)) (XX b) (XX c))", 0),
        ("(S (NP XX )NP XX XX )S", "(S (NP (XX a)) (XX b) (XX c))", 2),
        ("(S (NP XX )S XX XX ) )", "(S (NP (XX a)) (XX b) (XX c))", 2),
    ],
)
def test_closing_symbols_without_labels(symbols, expected, num_repairs):
    rebuilt = Linearization(labelled_closing=False).rebuild(symbols.split(), ["a", "b", "c"])
    assert (str(rebuilt.tree), rebuilt.num_repairs) == (expected, num_repairs)


@pytest.mark.parametrize(
    "symbols, expected, num_repairs",
    [
        ("(S (A a )A (NP (B -LRB- )B )NP )S", "(S (A a) (NP (B -LRB-)))", 0),
        # Another word than the sentence has.
        ("(S (A a )A (NP (B b )B )NP )S", "(S (A a) (NP (B -LRB-)))", 1),
        # A tag that is not closed, or by another label; a word without a tag.
        ("(S (A a (NP (B -LRB- )B )NP )S", "(S (A a) (NP (B -LRB-)))", 1),
        ("(S (A a )A (NP (B -LRB- )C )NP )S", "(S (A a) (NP (B -LRB-)))", 4),
        ("(S (A a )A -LRB- )S", "(S (A a) (XX -LRB-))", 1),
    ],
)
def test_words_with_tags(symbols, expected, num_repairs):
    rebuilt = Linearization(words=True, tags=True).rebuild(symbols.split(), ["a", "("])
    assert (str(rebuilt.tree), rebuilt.num_repairs) == (expected, num_repairs)


@pytest.mark.parametrize("linearization", WAYS, ids=str)
def test_thousands_of_open_constituents_are_no_problem(linearization):
    symbols = ["(S", "(NP"] * 2500
    tree = linearization.to_tree(symbols, ["a", "b"])
    assert tree.words() == ["a", "b"]
    assert sum(not part.is_leaf for part in tree.subtrees()) == 5000
    assert linearization.to_tree([*symbols, *[")S"] * 2500], ["a"]).words() == ["a"]
