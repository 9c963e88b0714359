"""Parser: a tree over exactly the words of every sentence, whatever the words and the batch."""

import json
import logging

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling
from keras_transformer.errors import UserError
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble
from keras_transformer.parsing import Linearization, Tree
from keras_transformer.parsing.parser import Parser
from tests.closeness import assert_close
from tests.tiny_parser import parsing_model, symbol_tokenizer, tiny_parser
from tests.tiny_translator import WORDS, sentence, tiny_tokenizer, tiny_translator

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
        assert trees == [parser.parse([text])[0] for text in SENTENCES]
        assert trees == parser.parse(SENTENCES[::-1], batch_size=2)[::-1]
        assert len({tree.label for tree in trees} | {str(tree) for tree in trees}) > 6
        assert max(len(list(tree.subtrees())) - len(tree.words()) for tree in trees) > 2

    def test_a_sentence_without_words_has_no_tree(self, parser):
        first = parser.parse(SENTENCES[:1])  # Words and text are the same sentence.
        words = np.array(SENTENCES[0].split(" "))
        assert parser.parse(["", words, [], " \t\n"]) == [None, *first, None, None]
        assert parser.parse(["", [], "  "]) == [None] * 3
        assert parser.parses([""]) == [[]]
        assert parser.parse([]) == []

    @pytest.mark.parametrize("constrained", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_hostile_words_are_the_words_of_the_tree(self, parser, constrained):
        trees = parser.parse(HOSTILE, GreedySearch(), constrained=constrained)
        assert [tree.words() for tree in trees] == [words_of(text) for text in HOSTILE]
        assert trees[0].words() == ["a\u00a0b", "c"]
        for tree in trees[:2]:
            assert Tree.parse(str(tree)) == tree

    @pytest.mark.parametrize("sentences", [
        "a dog", [b"a dog"], [None], [["a", ""]], [["a\t"]], [[1]],
    ])  # fmt: skip
    def test_what_is_no_list_of_sentences_is_refused(self, parser, sentences):
        with pytest.raises(ValueError, match="(must be a list|must be a string, or).*Received"):
            parser.parse(sentences)

    @pytest.mark.slow
    def test_a_long_sentence_is_cut_for_the_model_alone(self, caplog):
        parser = tiny_parser(max_source_length=9, search=GreedySearch())
        long = sentence(40, 3)
        with caplog.at_level(logging.WARNING, "keras_transformer"):
            tree, other = parser.parse([long, SENTENCES[3]])
        assert (tree.words(), other.words()) == (words_of(long), words_of(SENTENCES[3]))
        warning = "1 of 2 sources have more than 8 subwords and were cut to that length; "
        assert [record.getMessage() for record in caplog.records] == [
            f"{warning}their trees have all words."
        ]

    @pytest.mark.slow
    def test_learned_positions_too_few_for_a_tree_give_a_flat_one(self, caplog):
        target = symbol_tokenizer()
        model = parsing_model(target, position="learned", max_length=12)
        parser = tiny_parser(model=model, search=BeamSearch(2, n_best=2))
        with caplog.at_level(logging.WARNING, "keras_transformer"):
            (flat,), *others = parser.parses([sentence(10), sentence(9), sentence(2)])
        assert flat.tree == Tree("S", [Tree("XX", word) for word in sentence(10).split(" ")])
        assert flat.score == flat.log_probability == -np.inf and flat.num_repairs > 0
        assert all(parse.num_repairs == 0 for parses in others for parse in parses)
        warning = "1 of 3 sentences have more words than a tree of the model can have: 9."
        assert warning in caplog.text


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
        translator = Translator(parser.model, parser.source_tokenizer, parser.target_tokenizer,
                                search, extra_length=parser.extra_length)  # fmt: skip
        for text, (parse,) in zip(SENTENCES, free, strict=True):
            if len(tiny_tokenizer().encode(text)) == len(text.split(" ")):  # the same limit
                symbols = translator.translate([text])[0].split(" ")
                assert parser.linearization.rebuild(symbols, words_of(text)).tree == parse.tree

    @pytest.mark.slow
    @pytest.mark.parametrize("search", [GreedySearch(), Sampling(num_samples=3)])
    @pytest.mark.parametrize("linearization", [
        Linearization(numbers=True), Linearization(tags=True), Linearization(words=True),
        Linearization(tags=True, labelled_closing=False, root_label="TOP"),
    ])  # fmt: skip
    def test_every_way_to_write_trees(self, linearization, search):
        target = symbol_tokenizer(linearization, WORDS)
        model = parsing_model(target)
        parser = tiny_parser(linearization=linearization, target=target, model=model, search=search)
        assert parser.constrained
        for text, parses in zip(SENTENCES, parser.parses(SENTENCES), strict=True):
            assert len(parses) == search.width
            for parse in parses:
                assert parse.tree.words() == words_of(text)
                # Only that the model has written other words may need a repair.
                assert parse.num_repairs <= linearization.words * len(words_of(text))
                assert all(tree.label for tree in parse.tree.subtrees())


class TestConstrained:
    @pytest.mark.slow
    def test_where_it_is_impossible_it_is_off_and_must_not_be_asked_for(self):
        lines = ["(S (NP XX )NP )S (VP )VP"] * 3
        tokenizer = tiny_tokenizer()
        for tags, reason in (True, "leaf must be one symbol"), (False, "be a SubwordTokenizer"):
            options = {"linearization": Linearization(words=True, tags=tags), "target": tokenizer}
            parser = tiny_parser(**options, search=GreedySearch())
            assert not parser.constrained
            assert parser.parse(lines)[0].words() == lines[0].split(" ")
            with pytest.raises(ValueError, match=reason):
                parser.parse(lines, constrained=True)
            with pytest.raises(ValueError, match=reason):
                parser.well_formed_trees(np.array([3]))
            with pytest.raises(ValueError, match=f"must be False or None. .*{reason}"):
                tiny_parser(**options, constrained=True)

    @pytest.mark.slow
    def test_it_can_be_switched_off(self, parser, tmp_path):
        other = tiny_parser(constrained=False, search=GreedySearch())
        assert not other.constrained
        free = parser.parses(SENTENCES, GreedySearch(), constrained=False)
        loaded = Parser.load(other.save(tmp_path / "model"))
        assert not loaded.constrained
        assert [p[0].tree for p in loaded.parses(SENTENCES)] == [p[0].tree for p in free]
        assert loaded.parse(SENTENCES, constrained=True) == parser.parse(SENTENCES, GreedySearch())


class TestDirectory:
    def test_what_was_saved_parses_as_before(self, parser, saved):
        loaded = Parser.load(saved)
        texts, search = SENTENCES[:2], GreedySearch()
        assert loaded.parse(texts, search) == parser.parse(texts, search)
        assert (loaded.search, loaded.extra_length) == (BeamSearch(3, 0.3), 24)
        assert loaded.linearization == parser.linearization and loaded.constrained
        config = json.loads((saved / "config.json").read_text())
        assert config["task"] == "parsing" and config["constrained"] is True
        assert config["linearization"] == {
            "words": False, "tags": False, "labelled_closing": True, "root_label": "S",
            "numbers": False, "max_unary": 8,
        }  # fmt: skip

    def test_the_search_of_the_paper_is_the_default(self):
        target = symbol_tokenizer()
        parser = Parser(parsing_model(target), tiny_tokenizer(), target)
        assert parser.search == BeamSearch(beam_size=21, length_penalty=0.3)
        limits = ops.convert_to_numpy(parser.max_lengths(np.array([0, 1, 40])))
        assert limits.tolist() == [1, 301, 340]

    def test_a_directory_of_the_other_kind_says_what_to_use(self, saved, tmp_path):
        with pytest.raises(UserError, match="holds a Parser, not a Translator: use Parser.load"):
            Translator.load(saved)
        other = tiny_translator().save(tmp_path / "translator")
        for directories in (other, [saved, other]):
            with pytest.raises(UserError, match="a Translator, not a Parser: use Translator.load"):
                Parser.load(directories)

    @pytest.mark.slow
    def test_several_directories_are_an_ensemble(self, saved, tmp_path):
        other = tiny_parser(seed=2).save(tmp_path / "other")
        parser = Parser.load([saved, other])
        assert isinstance(parser.model, Ensemble)
        trees = parser.parse(SENTENCES, GreedySearch())
        assert [tree.words() for tree in trees] == [words_of(text) for text in SENTENCES]
        config = json.loads((other / "config.json").read_text())
        config["linearization"]["root_label"] = "TOP"
        (other / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match="have the same linearization.*root_label='TOP'"):
            Parser.load([saved, other])
