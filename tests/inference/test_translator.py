"""Translator: text to text, in order, whatever the batch; scores that agree; errors in one line."""

import json
import logging
import threading
import time

import keras
import numpy as np
import pytest

from keras_transformer.data import BOS_ID, EOS_ID, SubwordTokenizer
from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    Sampling,
    SuppressTokens,
)
from keras_transformer.errors import UserError
from keras_transformer.inference.batch_inference import cut_batches
from keras_transformer.inference.results import align_words
from keras_transformer.inference.translator import Translator
from keras_transformer.models import TrainingRecipe
from tests.closeness import assert_close
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

TEXTS = [sentence(number_of_words, number_of_words) for number_of_words in (5, 2, 9, 3, 7, 4)]


@pytest.fixture(scope="module")
def translator():
    return tiny_translator(search=GreedySearch())


@pytest.fixture(scope="module")
def saved(translator, tmp_path_factory):
    return translator.save(tmp_path_factory.mktemp("models") / "new")


class TestTranslate:
    def test_neither_order_nor_batches_change_answers(self, translator):
        together = translator.translate(TEXTS)
        assert together == [translator.translate([text])[0] for text in TEXTS]
        assert translator.translate(TEXTS[::-1], batch_size=4) == together[::-1]
        assert len(set(together)) > 3

    def test_streams_do_not_change_answers(self):
        """A new translator: several threads want the search compiled at once."""
        translator, progress = tiny_translator(search=BeamSearch(3)), []
        texts = [sentence(1 + number % 9, number) for number in range(40)]
        found = translator.hypotheses(texts, batch_size=4, num_streams=3,
                                      progress=lambda *call: progress.append(call))  # fmt: skip
        assert progress == [(number, 40) for number in range(4, 41, 4)]
        for one, other in zip(found, translator.hypotheses(texts, batch_size=4), strict=True):
            assert [answer.tokens for answer in one] == [answer.tokens for answer in other]
        assert translator.translate(texts[:2], num_streams=5) == translator.translate(texts[:2])
        assert translator.translate([], num_streams=2) == []

    def test_streams_work_at_the_same_time_on_even_shares(self, translator, monkeypatch):
        barrier, batches = threading.Barrier(2, timeout=60), []
        search = translator._inference.search_batch

        def search_both(sources, *arguments, **options):
            barrier.wait()
            batches.append(len(sources))
            return search(sources, *arguments, **options)

        monkeypatch.setattr(translator._inference, "search_batch", search_both)
        translator.translate(TEXTS, num_streams=2)
        assert batches == [3, 3]

    def test_an_error_in_a_stream_ends_all(self, translator, monkeypatch):
        calls = []

        def fail(*arguments, **options):
            calls.append(options["seed_offset"])
            time.sleep(0.05)
            raise MemoryError("no room")

        monkeypatch.setattr(translator._inference, "search_batch", fail)
        with pytest.raises(MemoryError, match="no room"):
            translator.translate(TEXTS * 50, batch_size=1, num_streams=2)
        assert len(calls) < 100
        with pytest.raises(ValueError, match="num_streams=0"):
            translator.translate(TEXTS, num_streams=0)

    def test_text_without_subwords_is_empty_and_no_model_runs(self, translator, monkeypatch):
        first, second = translator.translate(TEXTS[:2])
        assert translator.translate(["", TEXTS[0], "  ", TEXTS[1]]) == ["", first, "", second]
        monkeypatch.setattr(translator._inference, "search_batch", None)
        assert translator.translate(["", " \t", "\u3000", "\n"]) == ["", "", "", ""]
        assert translator.translate([]) == []
        assert translator.hypotheses([" "])[0][0].score == 0.0

    @pytest.mark.parametrize("texts", ["a red house", b"a red house", ["a", b"b"], ["a", None]])
    def test_what_is_no_list_of_strings_is_refused(self, translator, texts):
        with pytest.raises(ValueError, match="must be a list of strings.*Received"):
            translator.translate(texts)

    @pytest.mark.tensorflow_only("JAX compiles for each shape, torch compiles nothing")
    @pytest.mark.slow
    def test_one_trace_serves_all_shapes(self, monkeypatch):
        translator = tiny_translator(search=GreedySearch())
        traces = []
        start = translator.model.start_decoding

        def counted(*args):
            traces.append(args)
            return start(*args)

        monkeypatch.setattr(translator.model, "start_decoding", counted, raising=False)
        for count in range(1, 5):
            translator.translate(TEXTS[:count])
        for seed in range(3):
            translator.translate(TEXTS[:2], Sampling(seed=seed))
        assert len(traces) == 2  # one for each search

    def test_new_weights_count_at_once(self, translator):
        before = translator.translate(TEXTS)
        weights = translator.model.get_weights()
        translator.model.set_weights(tiny_model(seed=6).get_weights())
        after = translator.translate(TEXTS)
        translator.model.set_weights(weights)
        assert after != before == translator.translate(TEXTS)


class TestLengths:
    def test_output_is_at_most_own_subwords_and_extra_length(self, translator, monkeypatch):
        monkeypatch.setattr(translator, "extra_length", 7)
        search = GreedySearch(constraints=[SuppressTokens([EOS_ID])])
        for text, [answer] in zip(TEXTS, translator.hypotheses(TEXTS, search), strict=True):
            assert answer.num_tokens == len(tiny_tokenizer().encode(text)) + 7

    def test_long_source_is_cut_with_a_warning(self, translator, caplog, monkeypatch):
        monkeypatch.setattr(translator, "max_source_length", 6)
        ids = tiny_tokenizer().encode(TEXTS[2])
        assert len(ids) > 5
        with caplog.at_level(logging.WARNING):
            answer = translator.hypotheses([TEXTS[2], "a"])[0][0].text
        assert "1 of 2 sources have more than 5 subwords" in caplog.text
        assert "split them into sentences first" in caplog.text
        assert answer == translator.translate([TEXTS[2]], long_texts="truncate")[0]
        assert "1 of 1 sources have more than 5 subwords and were cut" in caplog.text
        assert answer == translator.translate([tiny_tokenizer().decode(ids[:5])])[0]

    def test_learned_positions_bound_both_sides(self):
        model = tiny_model(position="learned", max_length=10)
        translator = Translator(model, tiny_tokenizer())
        assert translator.max_source_length == 10
        answers = translator.hypotheses([sentence(40)], GreedySearch())[0]
        assert answers[0].num_tokens <= 10
        with pytest.raises(UserError, match="at most 10"):
            translator.score(["a"], [sentence(40)])

    def test_batches_are_bounded_in_rows_and_padded_size(self):
        sizes = np.random.default_rng(0).integers(1, 50, 200).tolist()
        batches = cut_batches(dict(enumerate(sizes)), max_number=16, max_total=100)
        assert sorted(index for batch in batches for index in batch) == list(range(200))
        for batch in batches:
            assert len(batch) <= 16
            assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= 100
        assert cut_batches({}, 4, 10) == []
        with pytest.raises(ValueError, match="batch_size"):
            cut_batches({0: 1}, 0, 10)


class TestHypotheses:
    def test_n_best_is_sorted_distinct_and_normalized(self, translator):
        search = BeamSearch(n_best=4)
        best = translator.translate(TEXTS, search)
        for text, answers in zip(best, translator.hypotheses(TEXTS, search), strict=True):
            assert len({answer.tokens for answer in answers}) == len(answers) == 4
            # Those that ended in EOS come first.
            ranks = [(answer.tokens[-1] != EOS_ID, -answer.score) for answer in answers]
            assert ranks == sorted(ranks)
            assert answers[0].text == text
            for answer in answers:
                penalty = ((5 + answer.num_tokens) / 6) ** 0.6
                assert_close(answer.score, answer.log_probability / penalty, scale=1.0)
                assert len(answer.tokens) == answer.num_tokens

    def test_samples_follow_the_seed(self, translator):
        def samples(seed, texts=TEXTS[:2]):
            answers = translator.hypotheses(texts, Sampling(num_samples=2, seed=seed))
            return [answer.tokens for row in answers for answer in row]

        assert samples(1) == samples(1) != samples(2)
        # Batches of one call draw different numbers.
        answers = translator.hypotheses([TEXTS[0]] * 2, Sampling(num_samples=2), batch_size=1)
        assert answers[0][0].tokens != answers[1][0].tokens


class TestScore:
    def test_agrees_with_the_model_called_directly(self, translator):
        tokenizer, model = translator.source_tokenizer, translator.model
        sources, targets = TEXTS[:3], [TEXTS[4], "", TEXTS[5]]
        found = translator.score(sources, targets)
        for source, target, score in zip(sources, targets, found, strict=True):
            ids = tokenizer.encode(target)
            inputs = {"source": [*tokenizer.encode(source), EOS_ID], "target": [BOS_ID, *ids]}
            logits = model({name: np.array([row], "int32") for name, row in inputs.items()})
            logits = keras.ops.convert_to_numpy(logits)[0].astype("float64")
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            each = [logits[i, token] for i, token in enumerate([*ids, EOS_ID])]
            assert_close(score.token_log_probabilities, each, scale=1.0)
            assert_close(score.log_probability, sum(each), scale=1.0)
            assert (score.tokens, score.num_tokens) == ((*ids, EOS_ID), len(ids) + 1)


class TestPrefixes:
    PREFIXES = ["a red", "", "the old man", "", "window", "a"]

    @pytest.mark.parametrize("search", [
        GreedySearch(), pytest.param(BeamSearch(n_best=3), marks=pytest.mark.slow),
        pytest.param(Sampling(num_samples=3), marks=pytest.mark.slow),
    ])  # fmt: skip
    def test_every_hypothesis_begins_with_the_prefix_of_its_text(self, translator, search):
        plain, num_longer = translator.hypotheses(TEXTS, search), 0
        empty, *found = translator.hypotheses(["", *TEXTS], search, prefixes=["a", *self.PREFIXES])
        assert empty[0].text == ""
        for prefix, answers, without in zip(self.PREFIXES, found, plain, strict=True):
            ids = tuple(tiny_tokenizer().encode(prefix))
            assert all(answer.tokens[: len(ids)] == ids for answer in answers)
            assert all(answer.text.startswith(prefix) for answer in answers)
            if not prefix:
                assert [answer.tokens for answer in answers] == [a.tokens for a in without]
            else:
                num_longer += any(len(answer.tokens) > len(ids) + 1 for answer in answers)
        assert num_longer >= 2

    def test_prefixes_that_do_not_fit_are_refused(self, translator):
        with pytest.raises(ValueError, match="1 prefixes and 2 texts"):
            translator.translate(["a", "b"], prefixes=["c"])
        with pytest.raises(ValueError, match="prefixes must be a list"):
            translator.translate(["a"], prefixes="c")
        with pytest.raises(UserError, match="'a a a .*may have at most 1[0-9]"):
            translator.translate(["a"], prefixes=["a " * 40])


class TestAlign:
    def test_words_go_where_the_attention_of_their_subwords_goes(self):
        tokenizer, targets = tiny_tokenizer(), TEXTS[::-1]
        translator = Translator(tiny_model(num_decoder_layers=3), tokenizer)
        found = translator.align(TEXTS, targets)
        alone = [translator.align([s], [t])[0] for s, t in zip(TEXTS[:3], targets, strict=False)]
        for source, target, alignment, same in zip(TEXTS, targets, found, alone, strict=False):
            # The pieces of the words are those of the sentence.
            of_words = [list(map(tokenizer.encode, text.split())) for text in (source, target)]
            source_ids, target_ids = (sum(words, []) for words in of_words)
            assert source_ids == tokenizer.encode(source)
            inputs = [*source_ids, EOS_ID], [BOS_ID, *target_ids]
            weights = translator.model.attention_scores(*(np.array([x], "int32") for x in inputs))
            weights = weights["cross"][1]  # the last but one of three
            weights = keras.ops.convert_to_numpy(weights)[0].mean(axis=0)
            expected, row = [], 0
            for place, pieces in enumerate(of_words[1]):
                totals, column = [], 0
                for others in of_words[0]:
                    part = weights[row : row + len(pieces), column : column + len(others)]
                    totals.append(part.sum() / len(pieces))
                    column += len(others)
                row += len(pieces)
                assert_close(alignment.attention[place], totals)
                expected.append((totals.index(max(totals)), place))
            assert alignment.pairs == same.pairs == tuple(sorted(expected))

    def test_layers_and_lengths(self, translator, monkeypatch):
        monkeypatch.setattr(translator, "max_source_length", 4)
        (cut,) = translator.align([TEXTS[2]], [TEXTS[2]], layer=-1)
        assert cut.attention.shape == (9, 9)
        assert cut.attention[:, 4:].max() == 0.0
        pairs = [alignment.pairs for alignment in translator.align(["", "a", ""], ["a", "", ""])]
        assert pairs == [(), (), ()]
        for layer in (1, -3, True):
            with pytest.raises(ValueError, match=f"Received: layer={layer}"):
                translator.align(["a"], ["a"], layer=layer)
        with pytest.raises(ValueError, match="2 sources and 1 targets"):
            translator.align(["a", "b"], ["c"])

    def test_a_word_of_two_pieces_counts_by_sum_in_the_source_and_by_mean_in_the_target(self):
        weights = np.array([[0.4, 0.3, 0.3], [0.5, 0.1, 0.1], [0.9, 0.0, 0.1]])
        alignment = align_words(weights, source_words=[1, 2], target_words=[2, 0, 1])
        assert alignment.attention == pytest.approx(np.array([[0.45, 0.4], [0.0, 0.0], [0.9, 0.1]]))
        assert alignment.pharaoh() == "0-0 0-2"


class TestModelDirectory:
    def test_loads_what_was_saved(self, translator, saved):
        loaded = Translator.load(saved)
        for weight, expected in zip(loaded.model.weights, translator.model.weights, strict=True):
            np.testing.assert_array_equal(weight, expected)
        assert loaded.tokenizers.source.encode_batch(TEXTS) == tiny_tokenizer().encode_batch(TEXTS)
        assert (loaded.search, loaded.extra_length) == (translator.search, translator.extra_length)
        assert loaded.recipe is None
        names = ["config.json", "model.weights.h5", "tokenizer.model"]
        assert sorted(path.name for path in saved.iterdir()) == names

    @pytest.mark.slow
    def test_settings_tokenizers_and_recipe_are_kept(self, tmp_path):
        subwords = SubwordTokenizer(["a", "b", "c"])
        model = tiny_model(vocab_size=320, target_vocab_size=subwords.vocab_size)
        search = Sampling(top_k=3, constraints=[MinimumLength(4)])
        settings = {"max_source_length": 99, "recipe": TrainingRecipe(warmup_steps=7)}
        translator = Translator(model, tiny_tokenizer(), subwords, search=search, **settings)
        loaded = Translator.load(translator.save(tmp_path / "two"))
        assert loaded.search == translator.search and loaded.max_source_length == 99
        assert loaded.target_tokenizer.encode("c a") == subwords.encode("c a")
        assert json.loads((tmp_path / "two" / "recipe.json").read_text())["warmup_steps"] == 7
        assert loaded.recipe == TrainingRecipe(warmup_steps=7)
        assert Translator.load(loaded.save(tmp_path / "again")).recipe == loaded.recipe

    def test_failed_save_leaves_the_old_directory_alone(self, tmp_path, monkeypatch):
        directory = tiny_translator().save(tmp_path / "model")
        (directory / "history.csv").write_text("kept")
        before = {path.name: path.read_bytes() for path in directory.iterdir()}

        def broken(*_):
            raise OSError("no space left on device")

        monkeypatch.setattr("keras_transformer.data.tokenizer_pair.save_tokenizer", broken)
        for path in (directory, tmp_path / "other"):
            with pytest.raises(OSError, match="no space"):
                tiny_translator(seed=6).save(path)
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    @pytest.mark.slow
    def test_saving_other_tokenizers_removes_those_of_before(self, tmp_path):
        subwords, others = SubwordTokenizer(["a", "b", "c"]), SubwordTokenizer(["d", "e", "f"])
        model = tiny_model(target_vocab_size=7)
        model_of_text = tiny_model(vocab_size=7)
        kept = [".hidden", "history.csv", "config.json", "model.weights.h5"]
        for name in kept[:2]:
            (tmp_path / name).write_text("kept")
        pair = ["source_tokenizer.model", "target_tokenizer.txt", "recipe.json"]
        pair_of_text = ["source_tokenizer.txt", "target_tokenizer.txt"]
        for translator, files in [
            (Translator(model, tiny_tokenizer(), subwords, recipe=TrainingRecipe()), pair),
            (Translator(model_of_text, subwords), ["tokenizer.txt"]),
            (tiny_translator(), ["tokenizer.model"]),
            (Translator(model_of_text, subwords, others), pair_of_text),
        ]:
            loaded = Translator.load(translator.save(tmp_path))
            assert type(loaded.source_tokenizer) is type(translator.source_tokenizer)
            assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, *files])

    @pytest.mark.parametrize("name", ["tokenizer.txt", "recipe.json"])
    def test_a_file_that_is_no_part_of_a_model_is_never_deleted(self, tmp_path, name):
        (tmp_path / name).write_text("years of work")
        (tmp_path / "source_tokenizer.txt").write_text("in nobody's way")
        with pytest.raises(UserError, match=f"{name}'? is in the way"):
            tiny_translator().save(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
        (tmp_path / name).rename(tmp_path / "thesis.txt")
        assert Translator.load(tiny_translator().save(tmp_path)).recipe is None
        assert (tmp_path / "thesis.txt").read_text() == "years of work"
        assert (tmp_path / "source_tokenizer.txt").read_text() == "in nobody's way"


@pytest.mark.parametrize(("settings", "message"), [
    ({"extra_length": 0}, "extra_length"), ({"extra_length": 1.5}, "extra_length"),
    ({"max_source_length": 0}, "max_source_length"), ({"recipe": {"color": "red"}}, "color"),
    ({"target_tokenizer": SubwordTokenizer(["a"])}, "target tokenizer.*320.*vocab_size=5"),
])  # fmt: skip
def test_wrong_settings_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        Translator(tiny_model(), tiny_tokenizer(), **settings).save(tmp_path / "model")
