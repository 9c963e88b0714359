"""`WellFormedTrees` == every sequence that `Linearization.rebuild` finds well-formed, no other."""

import collections
import functools

import numpy as np
import pytest

from keras_transformer.data import EOS_ID, SubwordTokenizer
from keras_transformer.decoding import (
    BeamSearch,
    Sampling,
    compile_search,
)
from keras_transformer.parsing import Linearization, WellFormedTrees, tree_symbols
from tests.closeness import assert_close
from tests.decoding.toy_model import ToyModel, hypotheses

PLAIN = Linearization()
TWO_IN_A_ROW = Linearization(labelled_closing=False, max_unary=2)
# Pieces, the way to write trees, and the longest sequence that is looked at, EOS counted.
VOCABULARIES = {
    "two labels": (["(A", ")A", "(B", ")B", "XX"], PLAIN, 9),
    "tags": (["(A", ")A", "NN", "VB"], Linearization(tags=True), 9),
    "one part in two in a row": (["(A", "(B", ")", "XX"], TWO_IN_A_ROW, 9),
    "what is no symbol": (["(A", ")A", ")", "(C", "XX"], PLAIN, 7),
}


@functools.cache
def well_formed(name, num_words, max_length):
    """All well-formed sequences, found by trying every one; which words does not matter.

    Nothing that begins with more closing symbols than opening ones, or has too many words, is
    tried to its end.
    """
    pieces, linearization, _ = VOCABULARIES[name]
    tokenizer = SubwordTokenizer(pieces)
    found, beginnings = set(), [()]
    while beginnings:
        tokens = beginnings.pop()
        symbols = tokenizer.pieces(tokens)
        if linearization.rebuild(symbols, ["w"] * num_words).is_well_formed:
            found.add((*tokens, EOS_ID))
        kinds = collections.Counter(symbol[0] for symbol in symbols)
        is_hopeless = kinds[")"] > kinds["("] or len(tokens) - kinds[")"] - kinds["("] > num_words
        if len(tokens) + 1 < max_length and not is_hopeless:
            beginnings += [(*tokens, token) for token in range(4, tokenizer.vocab_size)]
    return found


def search_trees(
    search, model, num_words, max_lengths, symbols, constraint=WellFormedTrees, **limits
):
    def function(sentences, num_words, max_lengths, max_length):
        trees = constraint(num_words, *symbols, **limits)
        state = model.start(sentences, search.width)
        return search(model.step, state, max_lengths, max_length, constraints=[trees])

    arrays = [np.array(x, "int32") for x in (range(len(num_words)), num_words, max_lengths)]
    compiled = compile_search(function, sizes=("max_length",))
    return compiled(*arrays, max_length=int(max(max_lengths)))


@pytest.mark.parametrize("name", [
    name if name == "what is no symbol" else pytest.param(name, marks=pytest.mark.slow)
    for name in VOCABULARIES
])  # fmt: skip
def test_a_beam_of_everything_finds_every_tree_and_nothing_else(name):
    pieces, linearization, longest = VOCABULARIES[name]
    symbols = tree_symbols(SubwordTokenizer(pieces), linearization)
    model = ToyModel(4 + len(pieces), seed=5)
    cases = [(words, length) for words in (2, 3) for length in (longest - 1, longest)]
    cases += [(1, 3), (2, 4), (3, 6), (0, 5), (1, 4), (3, 5)]  # no room in three, no words in one
    num_words, max_lengths = zip(*cases, strict=True)
    expected = [well_formed(name, max(words, 1), length) for words, length in cases]
    expected[cases.index((0, 5))] = set()
    num_trees = max(map(len, expected))
    assert num_trees > 3 and not expected[4] and not expected[5] and not expected[9]
    search = BeamSearch(num_trees + 10, n_best=num_trees + 10)
    limit = {"max_unary": linearization.max_unary}
    result = search_trees(search, model, num_words, max_lengths, symbols, **limit)
    for sentence, trees in enumerate(expected):
        found = hypotheses(result, sentence)
        assert {tokens for tokens, _, _ in found} == trees | {()}
        assert found.count(((), -np.inf, -np.inf)) == len(found) - len(trees)
        next_log_probabilities = model.next_log_probabilities(sentence)
        for tokens, _, log_probability in found[: len(trees)]:
            steps = [next_log_probabilities(tokens[:i])[token] for i, token in enumerate(tokens)]
            assert_close(log_probability, sum(steps), scale=1.0)


@pytest.mark.parametrize("search", [
    BeamSearch(5, n_best=5),
    pytest.param(Sampling(top_k=2, num_samples=3), marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.parametrize("seed", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_every_answer_is_a_tree_of_its_words(search, seed):
    generator = np.random.default_rng(seed)
    labels = [f"L{number}" for number in range(generator.integers(1, 6))]
    linearization = Linearization(
        words=seed == 3,
        tags=seed == 1,
        numbers=seed == 2,
        labelled_closing=bool(generator.integers(2)),
        max_unary=2,
    )
    closings = [f"){label}" for label in labels] if linearization.labelled_closing else [")"]
    pieces = [f"({label}" for label in labels] + closings + ["XX", "NN", ")none", "(", "-"]
    pieces += map(str, range(100 * linearization.numbers))
    tokenizer = SubwordTokenizer(generator.permutation(pieces).tolist())
    symbols = tree_symbols(tokenizer, linearization)
    num_words = generator.integers(1, 9, 6)
    max_lengths = num_words + generator.integers(3, 30, 6)
    # A model that hardly ever closes, and one that hardly does anything else.
    model = ToyModel(tokenizer.vocab_size, seed=seed, sharpness=4.0)
    model.table[:, np.flatnonzero(symbols.closings >= 0)] += (-9.0, 9.0, 0.0, 3.0)[seed]
    limits = {"max_depth": 5, "max_unary": 2}
    result = search_trees(search, model, num_words, max_lengths, symbols, **limits)
    for i in range(6):
        found = hypotheses(result, i)
        assert len(found[0][0]) > 0
        for tokens, _, log_probability in found:
            if log_probability == -np.inf:  # fewer trees than beams
                continue
            assert tokens[-1] == EOS_ID and len(tokens) <= max_lengths[i]
            text = tokenizer.pieces(tokens[:-1])
            words = [f"w{number}" for number in range(num_words[i])]
            if linearization.words:  # which words is the model's own affair
                words = [symbol for symbol in text if symbol[0] not in "()"]
            assert linearization.rebuild(text, words).is_well_formed
            assert len(words) == num_words[i]
            depth = np.cumsum([(symbol[0] == "(") - (symbol[0] == ")") for symbol in text])
            assert depth.max() <= 5


@pytest.mark.parametrize("pieces,linearization,message", [
    (["(A", ")A", "NN"], Linearization(words=True, tags=True), "leaf must be one symbol"),
    (["(A", ")A", "1", "0"], Linearization(numbers=True), "0 to 99.* without '2'"),
    (["(A", ")A", "XX", "a@@"], PLAIN, "with 'a@@'"),
    (["(A", ")B", "XX"], PLAIN, "must have an opening symbol"),
])  # fmt: skip
def test_vocabularies_without_trees_are_refused(pieces, linearization, message):
    with pytest.raises(ValueError, match=message):
        tree_symbols(SubwordTokenizer(pieces), linearization)


@pytest.mark.parametrize("change,message", [
    ({"num_words": [[1]]}, "num_words of shape"),
    ({"openings": [0]}, r"\[vocabulary\]"),
    ({"words": [True, False, False]}, "token 0 with several"),
])  # fmt: skip
def test_arrays_that_make_no_sense_are_refused(change, message):
    arguments = {"num_words": [1], "openings": [0, -1, -1], "closings": [-1, 0, -1],
                 "words": [False, False, True], **change}  # fmt: skip
    with pytest.raises(ValueError, match=message):
        WellFormedTrees(**arguments)
