"""F1OnDev: parses, counts and logs; a sentence without a parse has no bracket right."""

import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import GreedySearch
from keras_transformer.parsing import F1OnDev, Tree, parseval
from keras_transformer.parsing.parser import Parser
from tests.tiny_parser import parsing_model, symbol_tokenizer
from tests.toy_treebank import toy_trees

WORDS = "the a of with . sees likes finds paints dog cat man woman tree house child".split()


@pytest.fixture
def tokenizers():
    return SubwordTokenizer(WORDS), symbol_tokenizer()


@pytest.fixture
def model(tokenizers):
    source, target = tokenizers
    return parsing_model(target, vocab_size=source.vocab_size)


@pytest.mark.slow
def test_logs_the_f1_of_greedy_parses_every_other_epoch(model, tokenizers):
    trees = toy_trees(4)
    callback = F1OnDev(trees, *tokenizers, every=2)
    callback.set_model(model)
    logs = [{} for _ in range(4)]
    for epoch, of_epoch in enumerate(logs):
        callback.on_epoch_end(epoch, of_epoch)
    parser = Parser(model, *tokenizers, search=GreedySearch())
    parses = parser.parse([tree.words() for tree in trees])
    expected = parseval(trees, parses).f1
    assert [of_epoch.get("val_f1") for of_epoch in logs] == [None, expected, None, expected]
    assert callback.history == [(1, expected), (3, expected)]
    assert callback.parses == parses
    assert callback.samples(2) == [
        (" ".join(tree.words()), str(parse), str(tree))
        for tree, parse in zip(trees[:2], parses, strict=False)
    ]


def test_a_model_does_not_win_by_failing_on_hard_sentences(model, tokenizers, monkeypatch):
    """Of 2 + 3 gold brackets 2 are found: recall 40, precision 100."""
    trees = [Tree.parse("(S (NP (DT the) (NN dog)))"),
             Tree.parse("(S (NP (DT a) (NN cat)) (VP (VBZ sees)))")]  # fmt: skip
    monkeypatch.setattr(Parser, "parse", lambda parser, sentences, **options: [trees[0], None])
    callback = F1OnDev(trees, *tokenizers)
    assert callback.evaluate(model) == pytest.approx(2 * 40 * 100 / 140)
    assert callback.score.f1 == 100, "EVALB leaves the sentence out"
    assert callback.samples(5)[1][1] == ""


def test_a_limit_draws_once_and_keeps_the_order(tokenizers):
    trees = toy_trees(40)
    chosen = F1OnDev(trees, *tokenizers, limit=10).trees
    places = [trees.index(tree) for tree in chosen]
    assert len(chosen) == 10 and places == sorted(places) and places != list(range(10))
    assert chosen == F1OnDev(trees, *tokenizers, limit=10).trees
    assert chosen != F1OnDev(trees, *tokenizers, limit=10, seed=1).trees
    assert F1OnDev(trees, *tokenizers, limit=100).trees == trees
