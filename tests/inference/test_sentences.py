"""Long text in parts: nothing is lost, every part fits, sentences end where training texts did."""

import json
import random
import unicodedata

import pytest

from keras_transformer.data import EncodedCorpus, PairsCorpus, SubwordTokenizer
from keras_transformer.inference import SentenceProfile
from keras_transformer.inference.sentence_ends import split_sentences, split_sentences_in_graph
from keras_transformer.inference.sentences import TextPart, join_parts, split_text
from tests.tiny_translator import sentence, tiny_tokenizer

ODD = {
    "one letter": "x" * 10_000,
    "dots and brackets": ".)" * 5_000,
    "spaces": "a" + " " * 10_000 + "b. c",
    "Chinese sentences": "红色的房子。" * 400,
    "one letter, many accents": "a" + "\u0301" * 2_000,
    "joined emoji": "👩\u200d👩\u200d👧" * 300,
    "French": "« Oui\u00a0! » " * 500,
    "surrogates and control characters": "a \ud800\x00" * 500,
    "sentences": " ".join(sentence(9, seed) + "." for seed in range(200)),
    "subwords": "play@@ house, " * 500,
}
TOKENIZERS = {
    "sentencepiece": tiny_tokenizer().encode_batch,
    "letters": lambda texts: [list(map(ord, text)) for text in texts],
}


def words(texts):
    """A subword for each word."""
    return [[4] * len(text.split()) for text in texts]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("limit", [3, 40])
@pytest.mark.parametrize("name", ODD)
def test_nothing_is_lost_and_every_part_fits(name, limit, tokenizer):
    lengths = []

    def encode_batch(texts):
        lengths.extend(map(len, texts))
        return TOKENIZERS[tokenizer](texts)

    parts = split_text(ODD[name], limit, encode_batch)
    texts = [part.text for part in parts]
    assert "".join(texts) == ODD[name]
    assert all(texts)
    assert all(len(part.ids) <= limit or len(part.text) == 1 for part in parts)
    assert sum(lengths) <= 8 * len(ODD[name])  # The tokenizer is not given each possible part.
    assert [part.ids for part in parts] == encode_batch(texts)


@pytest.mark.parametrize("text", [
    "It rains. |Really?! |Yes… |J. Poe ran. |So did I. |All day at 3 p.m. in Rome.",
    "He said: “No.” |Then (of course!) he left. |“Stop!” he said.",
    "„Nein.“ |Er ging. |»Ja!« |Sie auch.",
    "« Oui\u00a0!\u00a0» |Il part. |« Non ! » dit-il. |« Si. »",
    "3.5 km, v2.0, www.a.de. |End\n\n|and a text\nin lines",
    "他走了。|她说：“好！”|为什么？！|走吧",
    "क्या? |हाँ। |نعم؟ |لا۔ |Այո։ |Ok",
    "ဟုတ်တယ်။ |မဟုတ်ဘူး၊ |Ok ។ |ቤት። |བོད༎ |ᠮᠣ᠃ |Ok.",
    "\n\n|A。 \n\n|B。\n\n|C. \n \n|D",
    "No end", "", " ", "a. |b. |c", "Wait... |Go. |Oh!!! |J. K. Rowling.",
])  # fmt: skip
def test_sentences_end_where_a_reader_sees_it(text):
    assert split_sentences(text.replace("|", "")) == text.split("|")


@pytest.mark.tensorflow_only("the graph is TensorFlow's")
@pytest.mark.parametrize("abbreviations", [(), ("0", "mr", "p.m", "z.b")])
def test_a_graph_splits_in_the_same_places(abbreviations):
    generator = random.Random(7)
    units = [*"  .!Ib»(։।。它3A", "\n", "\n\n", "\xa0", "\u3000", "...", "?”", "！」", "« "]
    units += ["Mr", "z. B", "p.m", "Haus", "ist", "Élan", "ßt"]
    texts = ["".join(generator.choices(units, k=generator.randrange(25))) for _ in range(5000)]
    found = split_sentences_in_graph(texts, abbreviations).to_list()
    expected = [split_sentences(text, abbreviations) for text in texts]
    assert [[part.decode() for part in parts] for parts in found] == expected
    assert ["".join(parts) for parts in expected] == texts
    assert sum(map(len, expected)) > 2 * len(texts)


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


def test_a_sentence_that_is_too_long_is_by_itself_and_its_parts_are_alike():
    text = "One two. W " + "w " * 99 + "w. Three. Four."
    parts = split_text(text, 100, words)
    assert [len(part.ids) for part in parts] == [2, 51, 50, 2]
    assert all(part.ends_word for part in parts)


def test_a_word_that_is_too_long_is_cut_between_characters_as_one_sees_them():
    word = "e\u0301👩\u200d👧" * 50
    parts = split_text(f"one {word} two", 30, TOKENIZERS["letters"])
    assert [part.text for part in parts][:: len(parts) - 1] == ["one ", "two"]
    pieces = parts[1:-1]
    assert [part.ends_word for part in pieces] == [False] * (len(pieces) - 1) + [True]
    for piece in pieces:
        assert unicodedata.category(piece.text[0]) != "Mn"
        assert "\u200d" not in (piece.text[0], piece.text.strip()[-1])


def test_units_that_have_more_subwords_together_than_alone_stay_alone():
    squares = lambda texts: [[4] * len(ids) ** 2 for ids in words(texts)]  # noqa: E731
    parts = split_text("One. Two. Three.", 3, squares)
    assert [part.text for part in parts] == ["One. ", "Two. ", "Three."]


def test_an_empty_answer_leaves_no_space():
    parts = [TextPart("a ", [4]), TextPart("b", [5], ends_word=False), TextPart("c ", [6])]
    for answers, expected in (
        (["", "B", ""], "B"), (["A", "", "C"], "A C"), ("ABC", "A BC"),
        (["好。", "", "C"], "好。C"), (["A", "好”", "C"], "A 好”C"),
    ):  # fmt: skip
        assert join_parts(parts, answers) == expected


def test_pieces_of_text_without_spaces_end_words_and_those_of_a_word_do_not():
    for text, gap in (("红色的房子" * 9, " "), ("a" * 45, "")):
        parts = split_text(text, 12, lambda texts: [list(text) for text in texts])
        assert len(parts) == 5 and "".join(part.text for part in parts) == text
        assert join_parts(parts, ["A."] * 5) == gap.join(["A."] * 5)
        assert len(split_text(text, 12, lambda texts: [list(t) for t in texts], None, 45)) == 1


def profile(sources):
    tokenizer = SubwordTokenizer(sorted({word for line in sources for word in line.split()}))
    corpus = PairsCorpus([(source, source) for source in sources])
    return SentenceProfile.from_corpus(EncodedCorpus.from_corpus(corpus, tokenizer), tokenizer)


def test_a_profile_has_the_lengths_of_the_sources_and_whether_they_are_single_sentences():
    found = profile(["x"] * 98 + ["x x x", "x x x x x"])
    assert found == SentenceProfile(3, 5, True, (), ())
    for num_pairs, is_single in ((5, True), (6, False)):
        sources = ["It rains."] * (100 - num_pairs) + ["It rains. He runs."] * num_pairs
        assert profile(sources).single_sentences is is_single


def test_abbreviations_are_words_with_a_full_stop_inside_of_sentences():
    sources = ["We met Mr. Poe at 3 p.m. Monday."] * 2 + ["Am 3. Mai kam er. Er blieb."] * 2
    sources += ["He met Er once.", "It was 19."]
    found = profile(sources)
    assert found.abbreviations == ("0", "mr", "p.m")
    text = "Mr. Poe ran. He left at 3 p.m. Monday. He ran."
    sentences = ["Mr. Poe ran. ", "He left at 3 p.m. Monday. ", "He ran."]
    assert split_sentences(text, found.abbreviations) == sentences


def test_a_profile_survives_json_and_refuses_other_types():
    found = SentenceProfile(3, 5, True, ("mr",), (">>fra<<",))
    assert SentenceProfile.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    for wrong in ((3.0, 5, True), (3, -1, True), (3, 5, True, [1])):
        with pytest.raises(ValueError, match="must be .* Received: "):
            SentenceProfile(*wrong)
