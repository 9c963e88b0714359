"""`JoinedTrees` == every sequence that `Linearization.rebuild` finds well-formed, no other."""

import functools
import itertools

import numpy as np
import pytest

from keras_transformer.data import EOS_ID, SubwordTokenizer
from keras_transformer.decoding import BeamSearch, Sampling
from keras_transformer.parsing import JoinedTrees, Linearization, tree_symbols
from tests.closeness import assert_close
from tests.decoding.toy_model import ToyModel, hypotheses
from tests.parsing.test_well_formed_trees import search_trees

JOINED = Linearization(labelled_closing=False, joined=True)
PIECES = ["(A", "(A(B", ")", "(B)", "(A(B))", "XX", "NN", "(", "))"]
TOKENIZER = SubwordTokenizer(PIECES)
SYMBOLS = tree_symbols(TOKENIZER, JOINED)


def well_formed(num_words):
    """All well-formed sequences, found by trying every one."""
    found = set()
    for tokens in itertools.product(range(4, 4 + len(PIECES)), repeat=num_words):
        rebuilt = JOINED.rebuild(TOKENIZER.pieces(tokens), ["w"] * num_words)
        if rebuilt.is_well_formed:
            found.add((*tokens, EOS_ID))
    return found


search_joined = functools.partial(search_trees, symbols=SYMBOLS[:3], constraint=JoinedTrees)


def test_the_role_of_each_token():
    assert SYMBOLS.openings[4:].tolist() == [1, 2, 0, 1, 2, 0, 0, 0, 0]
    assert SYMBOLS.closings[4:].tolist() == [0, 0, 1, 1, 2, 0, 0, 0, 2]
    assert SYMBOLS.words.tolist() == [*[False] * 4, *[True] * 6, False, False, True]
    with pytest.raises(ValueError, match="must have a symbol that opens"):
        tree_symbols(SubwordTokenizer(["XX", ")"]), JOINED)


def test_a_beam_of_everything_finds_every_tree_and_nothing_else():
    num_words, model = (1, 2, 3, 0), ToyModel(TOKENIZER.vocab_size, seed=5)
    expected = [well_formed(number) for number in num_words[:3]] + [{(EOS_ID,)}]
    assert [len(trees) for trees in expected[:2]] == [2, 6]
    number = max(map(len, expected)) + 10
    search = BeamSearch(number, n_best=number)
    result = search_joined(search, model, num_words, [n + 1 for n in num_words])
    for sentence, trees in enumerate(expected):
        found = hypotheses(result, sentence)
        assert {tokens for tokens, _, _ in found} == trees | {()}
        next_log_probabilities = model.next_log_probabilities(sentence)
        for tokens, _, log_probability in found[: len(trees)]:
            steps = [next_log_probabilities(tokens[:i])[token] for i, token in enumerate(tokens)]
            assert_close(log_probability, sum(steps), scale=1.0)


def test_a_sentence_without_room_has_no_tree():
    result = search_joined(BeamSearch(2), ToyModel(TOKENIZER.vocab_size, seed=2), [4, 5], [5, 5])
    found = [hypotheses(result, sentence)[0] for sentence in range(2)]
    assert len(found[0][0]) == 5 and found[1][2] == -np.inf


def test_samples_are_trees_of_their_words():
    model, num_words = ToyModel(TOKENIZER.vocab_size, seed=1, sharpness=4.0), [1, 5, 12]
    result = search_joined(Sampling(num_samples=8), model, num_words, [20] * 3)
    for sentence, number in enumerate(num_words):
        for tokens, _, _ in hypotheses(result, sentence):
            assert len(tokens) == number + 1 and tokens[-1] == EOS_ID
            rebuilt = JOINED.rebuild(TOKENIZER.pieces(tokens[:-1]), ["w"] * number)
            assert rebuilt.is_well_formed
