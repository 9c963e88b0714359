"""Glossaries: what they find, and answers that contain it, wherever a translator runs."""

import copy
import functools
import logging
import re

import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer, train_sentencepiece
from keras_transformer.decoding import BeamSearch, GreedySearch, NoRepeatNgrams, Sampling
from keras_transformer.errors import UserError
from keras_transformer.inference import Glossary, SentenceProfile, Shortlist, Translator
from keras_transformer.models import Ensemble
from keras_transformer.models.ensemble import copy_of
from tests.inference.test_languages import make_translator
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer
from tests.tiny_translator import tiny_translator as shorter_translator


def tiny_translator(**settings):
    return shorter_translator(extra_length=40, **settings)


@functools.cache
def _compiled_once():
    return tiny_translator()


def shared_translator(**settings):
    """A translator with settings of its own; its model and compiled searches are those of all."""
    translator = copy.copy(_compiled_once())
    translator._inference = copy.copy(translator._inference)
    for name, value in settings.items():
        setattr(translator, name, value)
    return translator


TERMS = {"dog": "young cat", "red dog": "boat", "small": "Übergröße", "window": "window"}
TEXTS = [
    "a dog sleeps", "the red dog runs in the garden", "a house", "", "dog and dog and small dog",
    'A <b>dog</b> opens {x} at "http://a.de/b".', sentence(7, 1), "the window",
]  # fmt: skip


@pytest.mark.parametrize(
    "text, found",
    [
        ("Dogs, dog-dog DOG's _dog hotdog", ["Hund"] * 3),
        ("a hot\t dog. a hot  dogs", ["Hotdog"]),
        ("Polish polish POLISH", ["polnisch", "polieren", "polieren"]),
        ("US us", ["USA"]),
        ("我的狗和狗。 มีสุนัขใหญ่", ["Hund", "Hund", "Hund"]),
        ("C++ is not C, कि is not क", ["C++", "K"]),
        ("<b>dog</b> <br/> <a href='dog'>", ["<b>", "Hund", "</b>", "<br/>", "<a href='dog'>"]),
        ("{dog} {{a b}} {} ${x}, 3 < dog > 2", ["{dog}", "{{a b}}", "{}", "${x}", "Hund"]),
        ("%s %1$s %(dog)s %d%% %.2f, 100% sure", ["%s", "%1$s", "%(dog)s", "%d", "%.2f"]),
        ("%5.2f %.f %-8s %ld %1$@ at 5% off", ["%5.2f", "%.f", "%-8s", "%ld", "%1$@"]),
        ("hot dog dog hot", ["Hotdog", "Hund"]),
        ("play@@ dog dog@@ house dog @@ ", ["Hund"]),
        ("(https://a.de/dog?x=1#y), http://b/.", ["https://a.de/dog?x=1#y", "http://b/"]),
    ],
)
def test_terms_are_found_as_words_and_placeholders_as_they_are(text, found):
    terms = {
        "dog": "Hund", "hot dog": "Hotdog", "Polish": "polnisch", "polish": "polieren",
        "US": "USA", "狗": "Hund", "สุนัข": "Hund", "C++": "C++", "क": "K",
    }  # fmt: skip
    assert Glossary(terms, keep_placeholders=True).find(text) == found


def test_a_file_has_a_term_a_tab_and_a_translation_in_each_line(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufeffdog\t Hund \r\nhot  dog\tHotdog\ndog\tHund\n".encode())
    assert Glossary.load(path).terms == {"dog": "Hund", "hot dog": "Hotdog"}
    for content, message in {
        "": "is empty",
        "dog\tHund\n\n": "line 2: a line of a glossary is a term, a TAB and its translation",
        "dog Hund\n": "line 1: .* Received: 'dog Hund'",
        "dog\t \n": "line 1: a line of a glossary",
        "dog\tHund\tx\n": "line 1: a line of a glossary",
        "dog\tHund\ncat\tKatze\ndog\tRüde": "line 3: 'dog' already has another translation, 'Hund'",
    }.items():
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            Glossary.load(path)
    with pytest.raises(UserError, match="File not found"):
        Glossary.load(tmp_path / "none.tsv")
    for terms in ({}, {" ": "x"}, {"x": ""}):
        with pytest.raises(UserError, match="glossary"):
            Glossary(terms)


def test_spaces_inside_of_tags_are_those_of_the_source():
    glossary = Glossary({}, keep_placeholders=True)
    assert glossary.tidy("Ein <b> Hund </b> da", "a <b>dog</b> there") == "Ein <b>Hund</b> da"
    assert glossary.tidy("Ein <b> Hund </b>", "a <b> dog </b>") == "Ein <b> Hund </b>"
    assert glossary.tidy("<b> Hund </b> <br/> da", "<b>dog</b> <br/> x") == "<b>Hund</b> <br/> da"
    assert Glossary(TERMS).tidy("<b> Hund", "<b>dog") == "<b> Hund"


def _ensemble():
    models = Ensemble([tiny_model(1), tiny_model(2)])
    return Translator(models, tiny_tokenizer(), extra_length=40)


def _changed(change):
    def make():
        translator = tiny_translator()
        change(translator)
        return translator

    return make


def _enable_lora(translator):
    for layer in (block.feed_forward for block in translator.model.decoder.blocks):
        layer.inner_dense.enable_lora(2)


def _give_shortlist(translator):
    size = translator.model.config.vocab_size
    translator.shortlist = Shortlist(
        np.full((size, 2), 290, "int32"), np.arange(280, dtype="int32"), size, checksum=0
    )


def _in_half_precision():
    model = copy_of(tiny_model(), "bfloat16")
    return Translator(model, tiny_tokenizer(), extra_length=40)


# How the translator is made, and the options of the call.
CELLS = {
    "beam": (tiny_translator, {}),
    "greedy": (tiny_translator, {"search": GreedySearch()}),
    "wide": (tiny_translator, {"search": BeamSearch(12, patience=1.0)}),
    "streams": (tiny_translator, {"num_streams": 2, "batch_size": 3}),
    "no_repeat": (tiny_translator, {"search": BeamSearch(constraints=[NoRepeatNgrams(1)])}),
    "prefixes": (shared_translator, {"prefixes": ["a young cat", "the", *[""] * 6]}),
    "quantized": (_changed(lambda t: t.model.quantize("int8")), {}),
    "lora": (_changed(_enable_lora), {}),
    "half_precision": (_in_half_precision, {}),
    "shortlist": (_changed(_give_shortlist), {}),
    "ensemble": (_ensemble, {}),
    "learned_positions": (
        lambda: Translator(tiny_model(position="learned", max_length=64), tiny_tokenizer()), {}
    ),
}  # fmt: skip


# Cells of which each compiles its own searches; the others are slow tests.
_DEFAULT = ("prefixes", "quantized", "shortlist")


@pytest.mark.parametrize(
    "cell",
    [n if n in _DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in CELLS],
)
def test_answers_contain_the_terms_and_others_stay(cell, monkeypatch):
    monkeypatch.setattr("keras_transformer.inference.shortlist.SIZES", (310, 4096))
    make, options = CELLS[cell]
    translator, glossary = make(), Glossary(TERMS, keep_placeholders=True)
    before = translator.translate(TEXTS, **options)
    answers = translator.translate(TEXTS, glossary=glossary, **options)
    translator.glossary = glossary
    assert translator.translate(TEXTS, **options) == answers
    for text, answer, plain in zip(TEXTS, answers, before, strict=True):
        found = glossary.find(text)
        for term in found:
            is_word = term[0].isalpha()
            pattern = rf"(?<!\w){re.escape(term)}(?!\w)" if is_word else re.escape(term)
            assert len(re.findall(pattern, answer)) >= found.count(term), (text, answer)
        assert found or answer == plain
    if cell == "prefixes":
        assert answers[0].startswith("a young cat") and answers[0].count("young cat") == 1


def test_every_hypothesis_has_the_terms():
    translator = shared_translator(search=BeamSearch(4, n_best=4))
    [answers] = translator.hypotheses(TEXTS[:1], glossary=Glossary(TERMS))
    assert len({answer.tokens for answer in answers}) == 4
    assert all("young cat" in answer.text for answer in answers)


@pytest.mark.parametrize("prefix", ["the household", "a young", "young cat and young"])
def test_only_whole_terms_of_a_prefix_count(prefix):
    options = {"glossary": Glossary({"dog": "young cat", "small": "house"}), "prefixes": [prefix]}
    [answer] = shared_translator().translate(["a dog dog small"], **options)
    assert answer.startswith(f"{prefix} ") and answer.count("young cat") == 2
    assert re.search(r"\bhouse\b", answer)


def test_placeholders_load_no_model_of_their_own(monkeypatch):
    tokenizer, glossary = tiny_tokenizer(), Glossary({}, keep_placeholders=True)
    glossary.encode("a {x}", tokenizer)
    monkeypatch.setattr("sentencepiece.SentencePieceProcessor", None)
    assert len(glossary.encode("Click <b>here</b>", tokenizer)) == 2


def test_the_parts_of_a_long_text_have_their_own_terms():
    profile = SentenceProfile(usual_length=20, longest=40, single_sentences=True)
    translator = shared_translator(sentence_profile=profile)
    parts = ["A dog.", "A small house.", "The boat."]
    expected = translator.translate(parts, glossary=Glossary(TERMS))
    assert translator.translate([" ".join(parts)], glossary=Glossary(TERMS)) == [" ".join(expected)]


def test_terms_of_what_is_cut_off_do_not_count():
    translator, glossary = shared_translator(max_source_length=8), Glossary(TERMS)
    text = "a house opens a house opens a dog"
    found = translator.translate([text], long_texts="truncate", glossary=glossary)
    assert found == translator.translate([text], long_texts="truncate")


def test_accents_may_be_characters_of_their_own():
    for term, text in (("caf\u00e9", "a cafe\u0301"), ("cafe\u0301", "a caf\u00e9")):
        assert Glossary({term: "x"}).find(text) == ["x"]


def test_a_model_of_several_languages_puts_terms_behind_its_language():
    translator, glossary = (
        make_translator().with_languages("fr", "zho_Hant"),
        Glossary({"red": "a"}),
    )
    plain, found = (
        translator.hypotheses(["a red house"], glossary=g)[0][0] for g in (None, glossary)
    )
    [term] = glossary.encode("red", translator.target_tokenizer)
    assert found.tokens[0] == plain.tokens[0] == translator.target_tokenizer.beginning[0]
    assert found.tokens[0] not in term and set(term) <= set(found.tokens[1:])


def test_what_cannot_be_is_refused_by_name(caplog):
    translator = shared_translator()
    with pytest.raises(UserError, match="cannot be sampled; use a beam search. Received: Sampling"):
        translator.translate(TEXTS, Sampling(), glossary=Glossary(TERMS))
    assert translator.translate(["a house"], Sampling(), glossary=Glossary(TERMS))
    long = Glossary({"house": "window " * 30})
    with pytest.raises(UserError, match="'a house' may have at most .* Received: terms of its"):
        translator.translate(["a house"], glossary=long)
    words = SubwordTokenizer(["dog", "cat"])
    translator = Translator(tiny_model(vocab_size=words.vocab_size), words)
    with pytest.raises(UserError, match="cannot spell this term of the glossary. Received: 'Hund'"):
        translator.translate(["cat"], glossary=Glossary({"dog": "Hund"}))
    with caplog.at_level(logging.WARNING):
        translator.translate(["dog {x}"], glossary=Glossary({"dog": "cat"}, keep_placeholders=True))
    assert "cannot spell the placeholder '{x}'" in caplog.text


def test_other_types_are_refused_by_name():
    translator = shared_translator()
    with pytest.raises(ValueError, match="`glossary` must be a `Glossary`, or None"):
        translator.translate(["a"], glossary=TERMS)
    with pytest.raises(ValueError, match="`search` must be a search, or None"):
        translator.translate(["a"], "greedy")
    with pytest.raises(UserError, match="must be text. Received: 'dog' with None"):
        Glossary({"dog": None})


def test_terms_of_chinese_have_no_space_in_front():
    lines = ["我的狗在家", "狗和猫在家里", "猫"] * 4
    tokenizer = train_sentencepiece(lines, vocab_size=290)
    [ids] = Glossary({"dog": "狗"}).encode("a dog", tokenizer)
    assert tokenizer.decode([*tokenizer.encode("我的"), *ids]) == "我的狗"


def test_sentences_without_terms_need_no_more_beams(monkeypatch):
    translator, widths = shared_translator(), []
    search_batch = translator._inference.search_batch

    def record(sources, limits, search, **options):
        widths.append((len(sources), search.width, search.length_penalty))
        return search_batch(sources, limits, search, **options)

    monkeypatch.setattr(translator._inference, "search_batch", record)
    translator.translate(["a house", "a dog", "the boat"], glossary=Glossary(TERMS))
    assert widths == [(2, 4, 0.6), (1, 10, 0.3)]


def test_terms_of_many_ids_get_a_beam_for_each_number_of_ids(monkeypatch):
    inference, widths = tiny_translator()._inference, []
    record = lambda sources, limits, search, **_: widths.append(search.width)  # noqa: E731
    monkeypatch.setattr(inference, "search_batch", record)
    terms = [[], [[300] * 9], [[300] * 5, [301] * 5], [[300] * 40]]
    list(inference.search_batches([[5]] * 4, [60] * 4, BeamSearch(4), None, 10_000, terms=terms))
    assert widths == [4, 10, 32]
