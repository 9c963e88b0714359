"""`translate` splits texts that are too long, and gives the model batches of a bounded size."""

import copy
import types

import numpy as np
import pytest

from keras_transformer.data import EOS_ID, SentencePieceTokenizer, train_sentencepiece
from keras_transformer.data.sentencepiece_tokenizer import parse_model
from keras_transformer.decoding import GreedySearch, SearchResult
from keras_transformer.errors import UserError
from keras_transformer.inference import SentenceProfile
from keras_transformer.inference.batch_inference import BatchInference
from tests.tiny_translator import sentence, tiny_tokenizer, tiny_translator

SENTENCES = [sentence(3 + seed % 4, seed) + "." for seed in range(9)]
TEXT = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def translator():
    return tiny_translator(search=GreedySearch(), max_source_length=24)


class Echo(BatchInference):
    """In place of a model: the translation of a text is the text. Keeps the sizes of batches."""

    def __init__(self, model, tokenizer=None):
        super().__init__(model, tokenizer or tiny_tokenizer())
        self.tokenizer = tokenizer or tiny_tokenizer()
        self.batches = []
        self.prefixes = []

    def search_batch(self, sources, max_lengths, search, seed_offset, prefixes=None, num_given=0):
        assert all(source[-1] == EOS_ID for source in sources)
        width = max(map(len, sources))
        positions = search.width * (width - 1 + max(max_lengths))  # of each row, but for EOS
        self.batches.append((len(sources), width, positions))
        decode, prefixes = self.tokenizer.decode, prefixes or [[]] * len(sources)
        self.prefixes += [(decode(p), decode(s)) for p, s in zip(prefixes, sources, strict=True)]
        tokens = np.zeros((len(sources), 1, width), "int32")
        for row, source in zip(tokens[:, 0], sources, strict=True):
            row[: len(source)] = source
        lengths = (tokens != 0).sum(-1)
        return SearchResult(tokens, np.zeros(lengths.shape), np.zeros(lengths.shape), lengths)


@pytest.fixture
def echo(translator):
    """A translator that answers with the text itself, and what it was asked."""
    translator = copy.copy(translator)
    translator._inference = asked = Echo(translator.model)
    translator.num_split = 0
    return types.SimpleNamespace(translator=translator, translate=translator.translate, asked=asked)


def num_subwords(text):
    return len(tiny_tokenizer().encode(text))


class TestSplit:
    def test_nothing_of_a_text_is_lost_or_moved(self, echo):
        texts = [
            sentence(1_000),  # without any sentence end
            TEXT,
            "x" * 1_000,
            "",
            f"a {'x' * 100} dog. the cat",
            SENTENCES[0],
            "红色的房子" * 50,
        ]
        assert echo.translate(texts, batch_size=7) == texts
        assert all(width <= 24 for _, width, _ in echo.asked.batches)

    @pytest.mark.parametrize("text, symbols, declared, first, repeated", [
        ("- A dog runs. A cat sleeps.", ["-"], None, "- A dog runs. ", ""),
        ("<n> dogs run. A cat sleeps.", ["<n>"], (), "<n> dogs run. ", ""),
        ("fr A dog runs. It sleeps.", ["fr", "-"], ("fr",), "A dog runs. ", "fr "),
        (">>de<< A dog runs. It sleeps.", [">>de<<"], None, "A dog runs. ", ">>de<< "),
    ])  # fmt: skip
    def test_tags_alone_are_repeated(self, text, symbols, declared, first, repeated):
        tokenizer = train_sentencepiece([text, TEXT] * 50, 320, symbols=symbols)
        translator = tiny_translator(tokenizer=tokenizer)
        translator.sentence_profile = SentenceProfile(40, 40, True, tags=declared)
        parts = translator.split(text)
        assert [part.tags for part in parts] == [repeated] * 2
        assert parts[0].text == first and repeated + "".join(p.text for p in parts) == text

    def test_a_tag_without_text_is_empty(self):
        tokenizer = train_sentencepiece([TEXT] * 50, 320, symbols=[">>fra<<"])
        translator, texts = tiny_translator(tokenizer=tokenizer), [">>fra<< ", ">>fra<< a"]
        # A symbol that only looks like a tag may be the text.
        assert all(translator.split(text)[0].ids for text in texts)
        translator.sentence_profile = SentenceProfile(9, 9, True, tags=(">>fra<<",))
        assert translator.translate([*texts[:1], ">>fra<<", ""]) == [""] * 3
        assert [bool(translator.split(text)[0].ids) for text in texts] == [False, True]

    @pytest.mark.parametrize("keeps_spaces", [False, True])
    def test_tags_are_in_front_of_every_part(self, keeps_spaces):
        """Also where a space after the tags would be a piece of its own."""
        tags, begin = " <bt> >>fra<<", "<bt> >>fra<< "
        tokenizer = train_sentencepiece([TEXT] * 50, 320, symbols=["<bt>", ">>fra<<"])
        if keeps_spaces:
            message = parse_model(tokenizer.model)
            message.normalizer_spec.remove_extra_whitespaces = False
            tokenizer = SentencePieceTokenizer(message.SerializeToString())
        translator = tiny_translator(tokenizer=tokenizer, max_source_length=24)
        translator._inference = asked = Echo(translator.model, tokenizer)

        def parts_of(text):
            asked.prefixes.clear()
            translator.translate([tags + text])
            return [source for _, source in asked.prefixes]

        parts = parts_of(TEXT)
        assert len(parts) > 2 and all(part.startswith(begin) for part in parts)
        assert all(width <= 24 for _, width, _ in asked.batches)
        parts = sorted((part.removeprefix(begin) for part in parts), key=TEXT.index)
        whole = " ".join(parts)
        # Such a vocabulary also keeps the space at the end of a part.
        assert (whole.replace("  ", " ") if keeps_spaces else whole) == TEXT

    def test_a_prefix_goes_to_the_first_part_that_has_subwords(self, echo):
        text = "\u3000" * 3 + ". ".join(["a red house opens in the garden of the dog"] * 5)
        echo.translate([TEXT, "a dog", text], prefixes=["the", "", "a"])
        prefixes = {source: prefix for prefix, source in echo.asked.prefixes if prefix}
        assert sorted(prefixes.values()) == ["a", "the"]
        for source, prefix in prefixes.items():
            assert {"the": TEXT, "a": text.strip()}[prefix].startswith(source)

    def test_progress_counts_texts_that_are_whole(self, echo):
        calls, texts = [], [TEXT, "a dog", "", TEXT]
        echo.translate(texts, batch_size=1, progress=lambda *numbers: calls.append(numbers))
        assert echo.translator.num_split == 2
        num_parts = (len(echo.asked.batches) - 1) // 2  # of TEXT
        assert num_parts > 2 and len(calls) == 2 * num_parts + 1
        assert calls == sorted(calls)
        assert {total for _, total in calls} == {4}
        # All but the last part of a text leave it undone; the empty one is done from the start.
        assert [done for done, _ in calls].count(1) >= num_parts - 1
        assert calls[-1] == (4, 4)


class TestSentencesOfTheTraining:
    """A text that the model could read, but not as its training taught it."""

    def asked_for(self, echo, texts, *profile):
        echo.translator.sentence_profile = SentenceProfile(*profile)
        assert echo.translate(texts) == texts
        return sorted(source for _, source in echo.asked.prefixes)

    @pytest.mark.parametrize("single", [True, False])
    def test_as_many_together_as_were_usual(self, echo, single):
        sentences = [sentence(2, seed) + "." for seed in range(9)]
        two = " ".join(sentences[:2])
        usual = num_subwords(two)
        found = self.asked_for(echo, [two, " ".join(sentences)], usual, 23, single)
        if single:
            assert found == sorted([*sentences, *sentences[:2]])
        else:
            assert found.count(two) == 2 and 2 < len(found) < 10
            assert max(map(num_subwords, found)) <= usual

    def test_a_sentence_longer_than_any_is_split_between_words(self, echo):
        text = sentence(5)
        assert 5 < num_subwords(text) <= 23
        found = self.asked_for(echo, [text], 3, 5, True)
        assert max(map(num_subwords, found)) <= 5
        echo.asked.prefixes.clear()
        assert self.asked_for(echo, [text], 3, 23, True) == [text]  # unusual, but not unknown

    def test_whole_answers_are_warned_of(self, translator, caplog):
        translator = copy.copy(translator)
        translator.hypotheses(["a dog. a cat.", "a dog"])
        assert not caplog.text
        translator.sentence_profile = SentenceProfile(9, 9, True)
        translator.hypotheses(["a dog. a cat.", "a dog"])
        assert "1 of 2 texts have more sentences" in caplog.text


class TestOtherWays:
    def test_an_error_instead(self, translator):
        with pytest.raises(UserError, match=r"Text 1 .*at most 23\. .*'split' or 'truncate'"):
            translator.translate(["a", TEXT], long_texts="error")
        with pytest.raises(ValueError, match="`long_texts` must be one of 'split', .*'cut'"):
            translator.translate(["a"], long_texts="cut")
