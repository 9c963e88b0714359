"""The profile of training sentences says where later texts are split."""

import json

import pytest

from keras_transformer.data import EncodedCorpus, PairsCorpus, SubwordTokenizer
from keras_transformer.inference import SentenceProfile
from keras_transformer.inference.sentences import split_sentences


def profile(sources):
    words = sorted({word for line in sources for word in line.split()})
    tokenizer = SubwordTokenizer(words)
    corpus = PairsCorpus([(source, words[0]) for source in sources])
    return SentenceProfile.from_corpus(EncodedCorpus.from_corpus(corpus, tokenizer), tokenizer)


def test_lengths_are_those_of_the_sources():
    found = profile(["x"] * 98 + ["x x x", "x x x x x"])
    assert (found.usual_length, found.longest) == (3, 5)
    assert profile(["x"]) == SentenceProfile(1, 1, True, (), ())


@pytest.mark.parametrize("num_pairs,is_single", [(5, True), (6, False)])
def test_a_model_of_single_sentences_is_one_with_few_others(num_pairs, is_single):
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


@pytest.mark.parametrize("text,sentences", [
    ("", [""]),
    ("a dog. a cat.", ["a dog. ", "a cat."]),
    ("The etc. of it.", ["The etc. of it."]),
    ("J. Poe ran. So did I. He won.", ["J. Poe ran. ", "So did I. ", "He won."]),
    ("No! “Stop!” he said. Why?! Go.", ["No! ", "“Stop!” he said. ", "Why?! ", "Go."]),
    ("One\n\ntwo.", ["One\n\n", "two."]),
])  # fmt: skip
def test_initials_and_small_letters_begin_no_sentence(text, sentences):
    assert split_sentences(text) == sentences


def test_it_survives_json_and_refuses_other_types():
    found = SentenceProfile(3, 5, True, ("mr",), (">>fra<<",))
    assert SentenceProfile.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    for wrong in (
        (3.0, 5, True),
        (3, -1, True),
        (3, 5, 1),
        (3, 5, True, [1]),
        (3, 5, True, (), [""]),
    ):
        with pytest.raises(ValueError, match="must be .* Received: "):
            SentenceProfile(*wrong)
