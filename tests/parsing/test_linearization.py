"""Trees as symbols and back."""

import itertools

import pytest
from hypothesis import given

from keras_transformer.parsing import Linearization, Tree, read_trees
from tests.treebank_data import EXAMPLES, treebank_file, trees

TREE = Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBZ barks) (PRT (RP up))) (-RRB- -RRB-))")
WAYS = [
    Linearization(words, tags, labelled, numbers=numbers)
    for words, tags, labelled, numbers in itertools.product([False, True], repeat=4)
    if not (words and numbers)
]


@pytest.mark.parametrize(
    "words, tags, expected",
    [
        (False, False, "(S (NP XX XX )NP (VP XX (PRT XX )PRT )VP XX )S"),
        (False, True, "(S (NP DT NN )NP (VP VBZ (PRT RP )PRT )VP -RRB- )S"),
        (True, False, "(S (NP The dog )NP (VP barks (PRT up )PRT )VP -RRB- )S"),
        (
            True,
            True,
            "(S (NP (DT The )DT (NN dog )NN )NP (VP (VBZ barks )VBZ (PRT (RP up )RP )PRT )VP "
            "(-RRB- -RRB- )-RRB- )S",
        ),
    ],
)
def test_each_way_writes_what_it_says(words, tags, expected):
    symbols = Linearization(words, tags).to_symbols(TREE)
    assert symbols == expected.split(" ")
    plain = [")" if symbol.startswith(")") else symbol for symbol in symbols]
    assert Linearization(words, tags, labelled_closing=False).to_symbols(TREE) == plain


def test_numbers_stand_for_words_and_begin_again_after_99():
    assert " ".join(Linearization(numbers=True).to_symbols(TREE)) == (
        "(S (NP 0 1 )NP (VP 2 (PRT 3 )PRT )VP 4 )S"
    )
    tagged = Linearization(numbers=True, tags=True, labelled_closing=False)
    assert " ".join(tagged.to_symbols(TREE)) == (
        "(S (NP (DT 0 ) (NN 1 ) ) (VP (VBZ 2 ) (PRT (RP 3 ) ) ) (-RRB- 4 ) )"
    )
    words = [f"w{number}" for number in range(203)]
    tree = Tree("S", [Tree("XX", word) for word in words])
    symbols = Linearization(numbers=True).to_symbols(tree)
    assert symbols[1:-1] == [str(number) for number in [*range(100), *range(100), 0, 1, 2]]
    assert Linearization(numbers=True).rebuild(symbols, words) == (tree, 0)


def check_that_it_comes_back(linearization, tree):
    symbols = linearization.to_symbols(tree)
    assert not any(" " in symbol for symbol in symbols)
    tags = None if linearization.tags else tree.tags()
    rebuilt = linearization.rebuild(symbols, tree.words(), tags)
    assert rebuilt.tree == tree
    assert rebuilt.is_well_formed


@pytest.mark.parametrize("linearization", WAYS, ids=str)
@EXAMPLES
@given(tree=trees())
def test_every_tree_comes_back(linearization, tree):
    check_that_it_comes_back(linearization, tree)


def test_words_are_those_of_the_input_and_tags_unknown():
    linearization = Linearization()
    symbols = linearization.to_symbols(Tree.parse("(S (NP (PRP It)) (VP (VBZ works)))"))
    assert str(linearization.to_tree(symbols, ["(", "b"])) == "(S (NP (XX -LRB-)) (VP (XX b)))"


@pytest.mark.parametrize("linearization", WAYS, ids=str)
def test_given_tags_replace_those_of_the_symbols(linearization):
    symbols = linearization.to_symbols(TREE)
    tags = ["A", "B", "C", "D", "E"]
    assert linearization.to_tree(symbols, TREE.words(), tags).tags() == tags


@pytest.mark.parametrize(
    "tree, linearization",
    [
        (Tree("NN", "dog"), Linearization()),
        (Tree.parse("( (NP (NN dog)))"), Linearization()),
        (Tree.parse("(NP (NN New York))"), Linearization(words=True)),
    ],
)
def test_a_tree_that_symbols_cannot_hold_is_an_error(tree, linearization):
    with pytest.raises(ValueError, match="Received: Tree.parse"):
        linearization.to_symbols(tree)


def test_wrong_arguments_are_errors():
    with pytest.raises(ValueError, match=r"Received: root_label='\(S'"):
        Linearization(root_label="(S")
    with pytest.raises(ValueError, match="Received: words=True, numbers=True"):
        Linearization(words=True, numbers=True)
    with pytest.raises(ValueError, match="Received: numbers=1"):
        Linearization(numbers=1)
    with pytest.raises(ValueError, match="must have words"):
        Linearization().to_tree(["(S", ")S"], [])
    with pytest.raises(ValueError, match="Received: 1 tags and 2 words"):
        Linearization().to_tree(["(S", ")S"], ["a", "b"], ["A"])


@pytest.mark.parametrize("linearization", WAYS, ids=str)
def test_a_sample_of_a_treebank_comes_back(linearization):
    for tree in itertools.islice(read_trees(treebank_file("train")), 150):
        check_that_it_comes_back(linearization, tree)


@pytest.mark.slow
def test_every_tree_of_a_treebank_comes_back_in_every_way():
    count = 0
    for part in ("train", "dev"):
        for tree in read_trees(treebank_file(part)):
            count += 1
            for linearization in WAYS:
                check_that_it_comes_back(linearization, tree)
    assert count == 27_128
