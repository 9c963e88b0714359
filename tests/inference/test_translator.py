"""Translator: text to text, in order, whatever the batch; scores that agree; errors in one line."""

import logging

import keras
import numpy as np
import pytest

from keras_transformer.data import BOS_ID, EOS_ID, SubwordTokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling, SuppressTokens
from keras_transformer.errors import UserError
from keras_transformer.inference.batch_inference import cut_batches, positions_of_stream
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble
from tests.closeness import assert_close
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

TEXTS = [sentence(number_of_words, number_of_words) for number_of_words in (5, 2, 9, 3, 7, 4)]


@pytest.fixture(scope="module")
def translator():
    return tiny_translator(search=GreedySearch())


class TestTranslate:
    def test_neither_order_nor_batches_change_answers(self, translator):
        together = translator.translate(TEXTS)
        assert together == [translator.translate([text])[0] for text in TEXTS]
        assert translator.translate(TEXTS[::-1], batch_size=4) == together[::-1]
        assert len(set(together)) > 3

    def test_streams_do_not_change_answers(self):
        """A new translator: several threads want the search compiled at once."""
        translator, progress = tiny_translator(search=BeamSearch(2)), []
        options = {"batch_size": 4, "progress": lambda *call: progress.append(call)}
        found = translator.hypotheses(TEXTS * 2, num_streams=3, **options)
        assert progress == [(4, 12), (8, 12), (12, 12)]
        for one, other in zip(found, translator.hypotheses(TEXTS * 2, batch_size=4), strict=True):
            assert [answer.tokens for answer in one] == [answer.tokens for answer in other]
        with pytest.raises(ValueError, match="num_streams=0"):
            translator.translate(TEXTS, num_streams=0)

    def test_text_without_subwords_is_empty(self, translator):
        first, second = translator.translate(TEXTS[:2])
        texts = ["", TEXTS[0], " \u3000\n", TEXTS[1]]
        assert translator.translate(texts) == ["", first, "", second]
        assert translator.translate([]) == []
        assert translator.hypotheses([" "])[0][0].score == 0.0

    @pytest.mark.parametrize("texts", ["a red house", ["a", None]])
    def test_what_is_no_list_of_strings_is_refused(self, translator, texts):
        with pytest.raises(ValueError, match="texts must be a list of strings.*Received"):
            translator.translate(texts)
        with pytest.raises(ValueError, match="sources must be a list of strings.*Received"):
            translator.score(texts, ["a"])

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
        assert "1 of 2 sources have more than 5 subwords and were cut" in caplog.text
        assert answer == translator.translate([TEXTS[2]], long_texts="truncate")[0]
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


class TestHypotheses:
    def test_n_best_is_sorted_distinct_and_normalized(self, translator):
        for answers in translator.hypotheses(TEXTS, BeamSearch(n_best=4)):
            assert len({answer.tokens for answer in answers}) == len(answers) == 4
            # Those that ended in EOS come first.
            ranks = [(answer.tokens[-1] != EOS_ID, -answer.score) for answer in answers]
            assert ranks == sorted(ranks)
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
        # A batch shares no samples with those of the next seed.
        first, second = (
            translator.translate([TEXTS[0]] * 16, Sampling(seed=seed), batch_size=8)
            for seed in (0, 1)
        )
        assert first[8:] != second[:8]


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

    def test_every_hypothesis_begins_with_the_prefix_of_its_text(self, translator):
        search = Sampling(num_samples=2)
        plain = translator.hypotheses(TEXTS, search)
        empty, *found = translator.hypotheses(["", *TEXTS], search, prefixes=["a", *self.PREFIXES])
        assert empty[0].text == ""
        for prefix, answers, without in zip(self.PREFIXES, found, plain, strict=True):
            ids = tuple(tiny_tokenizer().encode(prefix))
            assert all(answer.tokens[: len(ids)] == ids for answer in answers)
            assert all(answer.text.startswith(prefix) for answer in answers)
            if not prefix:
                assert [answer.tokens for answer in answers] == [a.tokens for a in without]
        assert any(len(answer.tokens) > 4 for answer in found[0])

    def test_prefixes_that_do_not_fit_are_refused(self, translator):
        with pytest.raises(ValueError, match="1 prefixes and 2 texts"):
            translator.translate(["a", "b"], prefixes=["c"])
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

    def test_the_models_of_an_ensemble_may_have_other_depths(self):
        """The layer is counted in the blocks that all of them have."""
        models = [tiny_model(seed, num_decoder_layers=n) for seed, n in ((1, 3), (2, 2))]
        ensemble, tokenizer = Ensemble(models), tiny_tokenizer()
        [found] = Translator(ensemble, tokenizer).align(["a b"], ["a"])
        ids = [[*tokenizer.encode("a b"), EOS_ID]], [[BOS_ID, *tokenizer.encode("a")]]
        scores = ensemble.attention_scores(*(np.array(side, "int32") for side in ids))["cross"][-2]
        weights = keras.ops.convert_to_numpy(scores)[0].mean(axis=0)  # [target, source]
        words = [slice(0, len(tokenizer.encode("a"))), slice(len(tokenizer.encode("a")), -1)]
        rows = range(len(tokenizer.encode("a")))
        expected = [np.mean([weights[row, word].sum() for row in rows]) for word in words]
        assert_close(found.attention[0], expected)

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


@pytest.mark.parametrize(("settings", "message"), [
    ({"extra_length": 0}, "extra_length"), ({"max_source_length": 2**15}, "at most 16,384"),
    ({"target_tokenizer": SubwordTokenizer(["a"])}, "target tokenizer.*320.*vocab_size=5"),
    ({"origin": {"name": 3}}, "`origin` must be a dict of texts"),
])  # fmt: skip
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Translator(tiny_model(), tiny_tokenizer(), **settings)


@pytest.mark.parametrize("num_streams, share", [(1, 32_768), (4, 8_192), (64, 4_096)])
def test_the_batches_of_many_streams_are_not_tiny(num_streams, share):
    assert positions_of_stream(32_768, num_streams) == share
    assert positions_of_stream(100, num_streams) == 100
