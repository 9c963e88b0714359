"""Parser: a tree over exactly the words of every sentence, whatever the words and the batch.

`F1OnDev` scores its parses: a sentence without a parse has no bracket right.
"""

import numpy as np
import pytest
from keras import ops

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.inference.translator import Translator
from keras_transformer.parsing import F1OnDev, Linearization, Tree
from keras_transformer.parsing.parser import Parser
from tests.closeness import assert_close
from tests.tiny_parser import parsing_model, symbol_tokenizer, tiny_parser
from tests.tiny_translator import sentence, tiny_tokenizer
from tests.toy_treebank import toy_trees

SENTENCES = [sentence(number, number) for number in (5, 2, 9, 1, 7, 4)]
HOSTILE = [
    "a\u00a0b c", "( a )", "-LRB- x -RRB-", "a(b) )(", "\u2028 \x85 \x1c", "😀 \u202e x", "\u200b",
    " tab\tand\nline ", "</s> <pad> @@ a@@", "\ud800 lone", "(S (NP )S", "x" * 500, "\x00 \ufeff",
]  # fmt: skip


@pytest.fixture(scope="module")
def parser():
    return tiny_parser()


@pytest.fixture(scope="module")
def saved(parser, tmp_path_factory):
    return parser.save(tmp_path_factory.mktemp("models") / "parser")


def words_of(text):
    for space in "\t\n\r\f\v":
        text = text.replace(space, " ")
    return [word for word in text.split(" ") if word]


class TestParse:
    def test_trees_keep_the_order_and_the_words_of_the_sentences(self, parser):
        trees = parser.parse(SENTENCES)
        assert [tree.words() for tree in trees] == [words_of(text) for text in SENTENCES]
        assert trees == parser.parse(SENTENCES[::-1], batch_size=2)[::-1]
        assert len({str(tree) for tree in trees}) == len(SENTENCES)

    def test_a_sentence_without_words_has_no_tree(self, parser):
        first = parser.parse(SENTENCES[:1])  # Words and text are the same sentence.
        words = np.array(SENTENCES[0].split(" "))
        assert parser.parse(["", words, [], " \t\n"]) == [None, *first, None, None]
        assert parser.parses([""]) == [[]] and parser.parse([]) == []

    def test_hostile_words_are_the_words_of_the_tree(self, parser):
        trees = parser.parse(HOSTILE, GreedySearch())
        assert [tree.words() for tree in trees] == [words_of(text) for text in HOSTILE]
        assert trees[0].words() == ["a\u00a0b", "c"]
        for tree in trees[:2]:
            assert Tree.parse(str(tree)) == tree

    @pytest.mark.parametrize("sentences", [
        "a dog", [b"a dog"], [["a", ""]], [[1]],
    ])  # fmt: skip
    def test_what_is_no_list_of_sentences_is_refused(self, parser, sentences):
        with pytest.raises(ValueError, match="(must be a list|must be a string, or).*Received"):
            parser.parse(sentences)


class TestParses:
    def test_the_best_comes_first_with_the_log_probability_of_its_symbols(self, parser):
        symbols_of = parser.linearization.to_symbols
        scorer = Translator(parser.model, parser.source_tokenizer, parser.target_tokenizer)
        search = BeamSearch(4, 0.3, n_best=4)
        for text, parses in zip(SENTENCES, parser.parses(SENTENCES, search), strict=True):
            lines = [" ".join(symbols_of(parse.tree)) for parse in parses]
            assert len(set(lines)) == 4 and all(parse.num_repairs == 0 for parse in parses)
            assert parses == sorted(parses, key=lambda parse: -parse.score)
            for parse, score in zip(parses, scorer.score([text] * 4, lines), strict=True):
                assert_close(parse.log_probability, score.log_probability, scale=1.0)
                penalty = ((5 + score.num_tokens) / 6) ** 0.3
                assert_close(parse.score, score.log_probability / penalty, scale=1.0)

    def test_unconstrained_answers_are_repaired_and_say_so(self, parser):
        search = GreedySearch()
        free = parser.parses(SENTENCES, search, constrained=False)
        assert sum(parses[0].num_repairs for parses in free) > 0
        assert [p[0].tree.words() for p in free] == [words_of(text) for text in SENTENCES]

    @pytest.mark.slow
    def test_where_no_constraint_is_possible_it_must_not_be_asked_for(self):
        options = {"linearization": Linearization(words=True), "target": tiny_tokenizer()}
        parser = tiny_parser(**options, search=GreedySearch())
        assert not parser.constrained and parser.parse(["a dog"])[0].words() == ["a", "dog"]
        with pytest.raises(ValueError, match="must be False or None. .*be a SubwordTokenizer"):
            parser.parse(["a dog"], constrained=True)


class TestDirectory:
    def test_all_that_decides_about_a_tree_is_saved(self, parser, saved):
        loaded = Parser.load(saved)
        weights = zip(loaded.model.get_weights(), parser.model.get_weights(), strict=True)
        assert all(np.array_equal(found, expected) for found, expected in weights)
        texts = [*SENTENCES, "(S XX )S"]
        for found, expected in zip(loaded.tokenizers, parser.tokenizers, strict=True):
            assert found.encode_batch(texts) == expected.encode_batch(texts)
        assert (loaded.search, loaded.extra_length) == (BeamSearch(3, 0.3), 24)
        assert loaded.linearization == parser.linearization and loaded.constrained

    def test_the_search_of_the_paper_is_the_default(self):
        target = symbol_tokenizer()
        parser = Parser(parsing_model(target), tiny_tokenizer(), target)
        assert parser.search == BeamSearch(beam_size=21, length_penalty=0.3)
        limits = ops.convert_to_numpy(parser.max_lengths(np.array([0, 1, 40])))
        assert limits.tolist() == [1, 301, 340]

    @pytest.mark.parametrize("constrained, limits", [(True, [1, 2, 41]), (False, [1, 25, 64])])
    def test_a_joined_tree_has_a_symbol_for_each_word(self, constrained, limits):
        form = Linearization(labelled_closing=False, joined=True)
        parser = tiny_parser(linearization=form, constrained=constrained)
        found = ops.convert_to_numpy(parser.max_lengths(np.array([0, 1, 40])))
        assert found.tolist() == limits

    def test_a_joined_tree_without_the_constraint_keeps_its_room(self):
        form, search = Linearization(labelled_closing=False, joined=True), BeamSearch(2)
        other = tiny_parser(linearization=form, constrained=False)
        found = tiny_parser(linearization=form).parses(SENTENCES[:1], search, constrained=False)
        assert found == other.parses(SENTENCES[:1], search)

    def test_a_given_tree_may_be_one_of_a_treebank(self, parser):
        found, want = (
            parser.encode_pair("It works", tree)
            for tree in ("( (S (NP-SBJ (PRP It)) (VP (VBZ works))) )",
                         "(S (NP (PRP It)) (VP (VBZ works)))")
        )  # fmt: skip
        assert found == want


class TestF1OnDev:
    TOKENIZERS = SubwordTokenizer("the a dog cat sees".split()), symbol_tokenizer()

    def test_a_model_does_not_win_by_failing_on_hard_sentences(self, monkeypatch):
        """Of 2 + 3 gold brackets 2 are found: recall 40, precision 100."""
        trees = [Tree.parse("(S (NP (DT the) (NN dog)))"),
                 Tree.parse("(S (NP (DT a) (NN cat)) (VP (VBZ sees)))")]  # fmt: skip
        monkeypatch.setattr(Parser, "parse", lambda parser, sentences, **options: [trees[0], None])
        source, target = self.TOKENIZERS
        callback = F1OnDev(trees, source, target, every=2)
        callback.set_model(parsing_model(target, vocab_size=source.vocab_size))
        logs = [{}, {}]
        for epoch, of_epoch in enumerate(logs):
            callback.on_epoch_end(epoch, of_epoch)
        assert logs == [{}, {"val_f1": pytest.approx(2 * 40 * 100 / 140)}]
        assert callback.score.f1 == 100, "EVALB leaves the sentence out"
        assert callback.samples(5) == [("the dog", str(trees[0]), str(trees[0])),
                                       ("a cat sees", "", str(trees[1]))]  # fmt: skip

    def test_a_score_takes_the_compiled_parser_of_another(self):
        source, target = self.TOKENIZERS
        model = parsing_model(target, vocab_size=source.vocab_size)
        first, second = (F1OnDev(toy_trees(2), source, target) for _ in range(2))
        first.evaluate(model)
        second.pipeline = first.pipeline
        second.evaluate(model)
        assert second.pipeline is first.pipeline

    def test_a_limit_draws_once_and_keeps_the_order(self):
        trees = toy_trees(40)
        chosen = F1OnDev(trees, *self.TOKENIZERS, limit=10).trees
        places = [trees.index(tree) for tree in chosen]
        assert len(chosen) == 10 and places == sorted(places) and places != list(range(10))
        assert chosen == F1OnDev(trees, *self.TOKENIZERS, limit=10).trees
        assert chosen != F1OnDev(trees, *self.TOKENIZERS, limit=10, seed=1).trees
