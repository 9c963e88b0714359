"""Trees as symbols and back; any symbols at all become a tree over the words of the sentence."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.parsing import Linearization, Tree, read_trees
from tests.treebank_data import EXAMPLES, LABELS, treebank_file, trees

TREE = Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBZ barks) (PRT (RP up))) (-RRB- -RRB-))")
WAYS = [
    Linearization(words, tags, labelled, numbers=numbers)
    for words, tags, labelled, numbers in itertools.product([False, True], repeat=4)
    if not (words and numbers)
]
JOINED = Linearization(labelled_closing=False, joined=True)
WAYS.append(JOINED)
SYMBOLS = [f"{bracket}{label}" for bracket in "()" for label in (*LABELS, "NN")]
SYMBOLS += [")", "XX", "NN", "a", "b", "-LRB-", "(", "", "((", "(S)", "a b", "<unk>"]
SYMBOLS += ["(S(NP", "))", "(S(NP))", "(a b", "(S("]
SOUP = st.lists(st.sampled_from(SYMBOLS), max_size=40)
SENTENCE = st.lists(st.sampled_from(["a", "b", "(", "XX"]), min_size=1, max_size=8)


@pytest.mark.parametrize("words, tags, expected", [
    (False, False, "(S (NP XX XX )NP (VP XX (PRT XX )PRT )VP XX )S"),
    (False, True, "(S (NP DT NN )NP (VP VBZ (PRT RP )PRT )VP -RRB- )S"),
    (True, False, "(S (NP The dog )NP (VP barks (PRT up )PRT )VP -RRB- )S"),
    (True, True, "(S (NP (DT The )DT (NN dog )NN )NP (VP (VBZ barks )VBZ (PRT (RP up )RP )PRT )VP "
                 "(-RRB- -RRB- )-RRB- )S"),
])  # fmt: skip
def test_each_way_writes_what_it_says(words, tags, expected):
    symbols = Linearization(words, tags).to_symbols(TREE)
    assert symbols == expected.split(" ")
    plain = [")" if symbol.startswith(")") else symbol for symbol in symbols]
    assert Linearization(words, tags, labelled_closing=False).to_symbols(TREE) == plain


def test_the_joined_form_has_a_symbol_for_each_word():
    assert JOINED.to_symbols(TREE) == ["(S(NP", ")", "(VP", "(PRT))", "XX"]
    # Any answer of a parser is a tree that it can write, such as for a picture of its attention.
    form = dataclasses.replace(JOINED, max_unary=1)
    tree = form.to_tree(["(S(S(NP"], ["Stop"])
    assert str(tree) == "(S (S (NP (XX Stop))))" and form.to_symbols(tree) == ["(S(S(NP"]


def test_labels_with_other_spaces_are_joined():
    tree = Tree.parse("(S (N\u00a0P (X a) (X b)) (VP (X c)))")
    symbols = JOINED.to_symbols(tree)
    assert symbols == ["(S(N\u00a0P", ")", "(VP"]
    assert JOINED.rebuild(symbols, tree.words(), tree.tags()) == (tree, 0)


def test_numbers_stand_for_words_and_begin_again_after_99():
    assert " ".join(Linearization(numbers=True).to_symbols(TREE)) == (
        "(S (NP 0 1 )NP (VP 2 (PRT 3 )PRT )VP 4 )S"
    )
    tree = Tree("S", [Tree("XX", f"w{number}") for number in range(103)])
    symbols = Linearization(numbers=True).to_symbols(tree)
    assert symbols[1:-1] == [*map(str, range(100)), "0", "1", "2"]
    assert Linearization(numbers=True).rebuild(symbols, tree.words()) == (tree, 0)


def check_that_it_comes_back(tree):
    for linearization in WAYS:
        symbols = linearization.to_symbols(tree)
        assert not any(" " in symbol for symbol in symbols)
        tags = None if linearization.tags else tree.tags()
        rebuilt = linearization.rebuild(symbols, tree.words(), tags)
        assert rebuilt.tree == tree and rebuilt.is_well_formed


@EXAMPLES
@given(trees())
def test_every_tree_comes_back(tree):
    check_that_it_comes_back(tree)


def test_every_tree_of_a_treebank_comes_back_in_every_way():
    for tree in itertools.islice(read_trees(treebank_file("dev")), 25):
        check_that_it_comes_back(tree)


@pytest.mark.parametrize("tree, linearization", [
    (Tree("NN", "dog"), Linearization()),
    (Tree.parse("( (NP (NN dog)))"), Linearization()),
    (Tree.parse("(NP (NN New York))"), Linearization(words=True)),
    (Tree.parse("(S (NP (NN a)) (NP (NP (NP (NN dog)))))"), Linearization(max_unary=2)),
])  # fmt: skip
def test_a_tree_that_symbols_cannot_hold_is_an_error(tree, linearization):
    with pytest.raises(ValueError, match="Received: Tree.parse"):
        linearization.to_symbols(tree)


@pytest.mark.parametrize("function, message", [
    (lambda: Linearization(root_label="(S"), r"Received: root_label='\(S'"),
    (lambda: Linearization(words=True, numbers=True), "Received: words=True, numbers=True"),
    (lambda: Linearization(joined=True), "With `joined`, .* Received: labelled_closing=True"),
    (lambda: Linearization().to_tree(["(S", ")S"], []), "must have words"),
    (lambda: Linearization().to_tree(["(S"], ["a", "b"], ["A"]), "Received: 1 tags and 2 words"),
])  # fmt: skip
def test_wrong_arguments_are_errors(function, message):
    with pytest.raises(ValueError, match=message):
        function()


@EXAMPLES
@given(symbols=SOUP, words=SENTENCE)
def test_any_soup_becomes_a_tree_over_the_words(symbols, words):
    for linearization in WAYS:
        rebuilt = linearization.rebuild(symbols, words)
        assert rebuilt.tree.words() == words
        assert not rebuilt.tree.is_leaf
        assert Tree.parse(str(rebuilt.tree)) == rebuilt.tree
        assert linearization.rebuild(symbols, words) == rebuilt
        # Well-formed are the sequences of trees, and no others.
        is_unchanged = linearization.to_symbols(rebuilt.tree) == symbols
        assert rebuilt.is_well_formed == is_unchanged


@pytest.mark.parametrize("settings, symbols, expected, num_repairs", [
    ({}, "(S (NP XX )NP XX XX )S", "(S (NP (XX a)) (XX b) (XX c))", 0),
    # Nothing is known: the default root; each of three words is missing, the root twice.
    ({}, "", "(S (XX a) (XX b) (XX c))", 5),
    # Unknown symbols are left out.
    ({}, "(S <unk> XX (( XX XX )S", "(S (XX a) (XX b) (XX c))", 2),
    # A word before any opening symbol.
    ({}, "XX (NP XX XX )NP )S", "(S (XX a) (NP (XX b) (XX c)))", 1),
    # One of a label that is not open closes the innermost.
    ({}, "(S (NP XX )VP XX XX )S", "(S (NP (XX a)) (XX b) (XX c))", 1),
    # What follows the root is put into it.
    ({}, "(S XX )S (NP XX XX )NP", "(S (XX a) (NP (XX b) (XX c)))", 2),
    # Words too many.
    ({}, "(S (NP XX XX )NP XX XX )S", "(S (NP (XX a) (XX b)) (XX c))", 1),
    # A constituent without words, here a root.
    ({}, "(NP )NP (S XX XX XX )S", "(S (XX a) (XX b) (XX c))", 1),
    # Of a wrong number, the next word is meant.
    ({"numbers": True}, "(S (NP 0 )NP 2 2 )S", "(S (NP (XX a)) (XX b) (XX c))", 1),
    ({"numbers": True}, "(S (NP 100 )NP XX 2 )S", "(S (NP (XX a)) (XX b) (XX c))", 2),
    # Too many in a row with a single part.
    ({"max_unary": 1}, "(S (A (B XX )B )A (C (D XX XX )D )C )S",
     "(S (B (XX a)) (C (D (XX b) (XX c))))", 1),
    ({"labelled_closing": False, "joined": True}, "(S(NP) ) XX",
     "(S (NP (XX a)) (XX b) (XX c))", 2),
    # The last word has no closings; the others are missing, and the root twice.
    ({"labelled_closing": False, "joined": True}, "foo )", "(S (XX a) (XX b) (XX c))", 6),
    # Closing symbols without labels.
    ({"labelled_closing": False}, "(S (NP XX )NP XX XX )S", "(S (NP (XX a)) (XX b) (XX c))", 2),
])  # fmt: skip
def test_each_repair(settings, symbols, expected, num_repairs):
    rebuilt = Linearization(**settings).rebuild(symbols.split(), ["a", "b", "c"])
    assert (str(rebuilt.tree), rebuilt.num_repairs) == (expected, num_repairs)


@pytest.mark.parametrize("symbols, expected, num_repairs", [
    ("(S (A a )A (NP (B -LRB- )B )NP )S", "(S (A a) (NP (B -LRB-)))", 0),
    # A tag that is closed by another label; a word without a tag.
    ("(S (A a )A (NP (B -LRB- )C )NP )S", "(S (A a) (NP (B -LRB-)))", 4),
    ("(S (A a )A -LRB- )S", "(S (A a) (XX -LRB-))", 1),
])  # fmt: skip
def test_words_with_tags(symbols, expected, num_repairs):
    rebuilt = Linearization(words=True, tags=True).rebuild(symbols.split(), ["a", "("])
    assert (str(rebuilt.tree), rebuilt.num_repairs) == (expected, num_repairs)
