"""Long text in parts: nothing is lost, every part fits, and sentences and words stay whole."""

import random
import unicodedata

import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.inference.sentences import TextPart, split_text
from keras_transformer.inference.translator import _join
from tests.tiny_translator import sentence, tiny_tokenizer

ODD = {
    "one letter": "x" * 100_000,
    "dots": "." * 100_000,
    "dots and brackets": ".)" * 20_000,
    "spaces": "a" + " " * 50_000 + "b. c",
    "lines": "\n \t" * 10_000 + "a",
    "Chinese": "红色的房子" * 400,
    "Chinese sentences": "红色的房子。" * 400,
    "one letter, many accents": "a" + "\u0301" * 2_000,
    "letters with accents": "e\u0301" * 2_000,
    "joined emoji": "👩\u200d👩\u200d👧" * 300,
    "French": "« Oui\u00a0! » " * 500,
    "control characters": "\x00\x01 " * 1_000,
    "surrogates": "a \ud800" * 500,
    "words": " ".join(sentence(9, seed) for seed in range(200)),
    "sentences": " ".join(sentence(9, seed) + "." for seed in range(200)),
    "subwords": "play@@ house, " * 500,
    "nothing": "",
}
TOKENIZERS = {
    "sentencepiece": tiny_tokenizer().encode_batch,
    "subwords": SubwordTokenizer(["a", "b."]).encode_batch,
    "letters": lambda texts: [list(map(ord, text)) for text in texts],
}


def one_id_each(texts):
    """With a limit of one subword every unit is a part."""
    return [[4] for _ in texts]


def words(texts):
    """A subword for each word."""
    return [[4] * len(text.split()) for text in texts]


def limits(text):
    return (1, 3, 40, 1023) if len(text) <= 5_000 else (40, 1023)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    "name, limit", [(name, limit) for name, text in ODD.items() for limit in limits(text)]
)
def test_nothing_is_lost_and_every_part_fits(name, tokenizer, limit):
    encode_batch = TOKENIZERS[tokenizer]
    parts = split_text(ODD[name], limit, encode_batch)
    texts = [part.text for part in parts]
    assert "".join(texts) == ODD[name]
    assert all(texts) or not ODD[name]
    assert [part.ids for part in parts] == encode_batch(texts)
    assert all(len(part.ids) <= limit or len(part.text) == 1 for part in parts)


@pytest.mark.parametrize("name", [name for name, text in ODD.items() if len(text) >= 20_000])
def test_the_tokenizer_is_given_the_text_a_few_times_only(name):
    lengths = []

    def counted(texts):
        lengths.extend(map(len, texts))
        return tiny_tokenizer().encode_batch(texts)

    split_text(ODD[name], 100, counted)
    assert sum(lengths) <= 6 * len(ODD[name])


@pytest.mark.parametrize(
    "text",
    [
        "It rains. |Really?! |Yes… |All day.",
        "He said: “No.” |Then (of course!) he left.",
        "„Nein.“ |Er ging. |»Ja!« |Sie auch.",
        "« Oui\u00a0!\u00a0» |Il part. |« Non ! » dit-il. |« Si. »",
        "3.5 km, v2.0, www.a.de. |End",
        "他走了。|她说：“好！”|为什么？！|走吧",
        "Wait...  what\t?\n|No",
        "wait...  |what\t?\n|no",
        "a heading\n\n|and a text\nin lines",
        "क्या? |हाँ। |نعم؟ |لا۔ |Այո։ |Ok",
        "the dog . |the cat !",
    ],
)
def test_sentences_end_where_a_reader_sees_it(text):
    parts = split_text(text.replace("|", ""), 1, one_id_each)
    assert [part.text for part in parts] == text.split("|")


def test_a_part_has_as_many_whole_sentences_as_fit():
    generator = random.Random(3)
    sentences = [" ".join(["w"] * generator.randint(1, 12)) + "." for _ in range(100)]
    parts = split_text(" ".join(sentences), 20, words)
    expected = [[sentences[0]]]
    for following in sentences[1:]:
        if len(" ".join([*expected[-1], following]).split()) > 20:
            expected.append([])
        expected[-1].append(following)
    assert [part.text.strip() for part in parts] == list(map(" ".join, expected))
    assert all(part.ends_word for part in parts)


def test_a_sentence_that_is_too_long_is_by_itself_and_its_parts_are_alike():
    text = "One two. W " + "w " * 99 + "w. Three. Four."
    parts = split_text(text, 100, words)
    assert [len(part.ids) for part in parts] == [2, 51, 50, 2]
    assert parts[0].text == "One two. " and parts[-1].text == "Three. Four."
    assert all(part.ends_word for part in parts)


def test_a_word_that_is_too_long_is_cut_between_characters_as_one_sees_them():
    word = "e\u0301👩\u200d👧" * 50
    parts = split_text(f"one {word} two", 30, TOKENIZERS["letters"])
    assert [part.text for part in parts][:: len(parts) - 1] == ["one ", "two"]
    pieces = parts[1:-1]
    assert [part.ends_word for part in pieces] == [False] * (len(pieces) - 1) + [True]
    for piece in pieces:
        first = piece.text[0]
        assert unicodedata.category(first) != "Mn" and "\u200d" not in (
            first,
            piece.text.strip()[-1],
        )


def test_units_that_have_more_subwords_together_than_alone_stay_alone():
    def encode_batch(texts):
        return [[4] * len(text.split()) ** 2 for text in texts]

    parts = split_text("One. Two. Three. Four.", 3, encode_batch)
    assert [part.text for part in parts] == ["One. ", "Two. ", "Three. ", "Four."]


def test_an_empty_answer_leaves_no_space():
    parts = [TextPart("a ", [4]), TextPart("b", [5], ends_word=False), TextPart("c ", [6])]
    for answers, expected in ((["", "B", ""], "B"), (["A", "", "C"], "A C"), ("ABC", "A BC")):
        assert _join(zip(parts, answers, strict=True)) == expected
    assert _join([]) == ""
