"""Long texts in a graph: the parts of `Translator.split`, joined as `Translator.translate` does."""

import random

import pytest

from keras_transformer.data import SubwordTokenizer, train_sentencepiece
from keras_transformer.decoding import GreedySearch
from keras_transformer.export import export_saved_model
from keras_transformer.inference import SentenceProfile
from keras_transformer.inference.sentences import TextPart, join_parts
from tests.tiny_translator import WORDS, sentence, tiny_translator

tf = pytest.importorskip("tensorflow", reason="the graph is TensorFlow's")
from keras_transformer.translation.parts_in_graph import (  # noqa: E402
    TextParts,
    join_answers,
    split_texts,
)

pytestmark = pytest.mark.tensorflow_only("the graph is TensorFlow's")
ENDS = [". ", "! ", "? ", "... ", ".” ", "。", "\n\n", ", ", " "]
PROFILES = {
    "none": None,
    "single sentences": SentenceProfile(12, 20, True, ("mr",), ()),
    "several sentences": SentenceProfile(14, 30, False, ("mr",), ()),
    "short": SentenceProfile(3, 15, True, (), (">>fra<<", "<bt>")),
}


# Longer than the texts of the training, but not longer than the model reads.
UNSPACED = ["红色的房子" * 4, "<bt> " + "红色的房" * 4, "The dog http://a.de/bcdefgh"]


def mixed_texts(number):
    generator, texts = random.Random(5), ["", " ", "\n", "Mr. the dog sleeps. A child."]
    while len(texts) < number:
        count = generator.choice([1, 1, 2, 3, 8])
        parts = [
            sentence(generator.randint(1, 14), generator.randrange(9999)) for _ in range(count)
        ]
        tags = generator.choice(["", "", ">>fra<< ", "  <bt> >>fra<<", "<bt>>>fra<<"])
        texts.append(tags + "".join(part + generator.choice(ENDS) for part in parts))
    return [*texts, *UNSPACED]


@pytest.fixture(scope="module")
def tokenizer():
    texts = mixed_texts(400)
    return train_sentencepiece(texts, 320, symbols=[">>fra<<", "<bt>"], allow_fewer=True)


@pytest.mark.parametrize("profile", PROFILES)
def test_parts_equal_those_of_a_translator(profile, tokenizer):
    translator = tiny_translator(tokenizer=tokenizer, max_source_length=24)
    translator.sentence_profile = profile = PROFILES[profile]
    tags = SentenceProfile.tags_of(profile, tokenizer)
    texts = mixed_texts(1500)
    parts = split_texts(tokenizer.in_graph(), tf.constant(texts), 23, profile, tags)
    found = [[] for _ in texts]
    for owner, text in zip(parts.owners.numpy(), parts.texts.numpy(), strict=True):
        found[owner].append(tokenizer.encode(text.decode()))
    expected = [[part.ids for part in translator.split(text)] for text in texts]
    assert found == expected
    assert sum(map(len, expected)) > 1.5 * len(texts)


def test_words_of_subword_nmt_stay_whole():
    pieces = ["ab@@", *WORDS, *(f"x{number}" for number in range(400))]
    tokenizer = SubwordTokenizer(pieces[:316])
    translator = tiny_translator(tokenizer=tokenizer, max_source_length=4)
    text = "ab@@ dog the ab@@ ab@@ cat a ab@@ red"
    parts = translator.split(text)
    found = split_texts(tokenizer.in_graph(), tf.constant([text]), 3, None, ())
    assert [part.decode() for part in found.texts.numpy()] == [part.text for part in parts]
    assert len(parts) > 2 and not any(part.text.endswith("@@ ") for part in parts)


def test_answers_are_joined_in_the_same_way():
    answers = [["A.", "", "B"], ["他走了。", "好", "Ja.", "走"], [""], ["", ""], ["「ね」", "はい"],
               ["«Да»", "x"], ["A", ""], ["เขาไป", "แล้ว"], ["သွားတယ်။", "ok"]]  # fmt: skip
    owners = [owner for owner, parts in enumerate(answers) for _ in parts]
    flat = tf.constant([answer for parts in answers for answer in parts])
    found = join_answers(flat, TextParts(flat, tf.constant(owners, "int64"), len(answers)))
    expected = [join_parts([TextPart("x", [5])] * len(parts), parts) for parts in answers]
    assert [text.decode() for text in found.numpy()] == expected
    assert expected[1] == "他走了。好Ja. 走" and expected[4] == "「ね」はい"
    assert expected[-2:] == ["เขาไปแล้ว", "သွားတယ်။ ok"]


@pytest.mark.parametrize("long_texts", ["split", "truncate"])
def test_a_saved_model_translates_as_translate_does(long_texts, tokenizer, signatures_of, tmp_path):
    signatures_of("serving_default", "n_best")
    translator = tiny_translator(tokenizer=tokenizer, search=GreedySearch(), max_source_length=24)
    translator.sentence_profile = SentenceProfile(12, 20, True, ("mr",), (">>fra<<",))
    export_saved_model(translator, tmp_path / "1", long_texts=long_texts)
    texts = [" >>fra<< ", *mixed_texts(60)]  # A tag alone is no text.
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    found = signatures["n_best"](text=tf.constant(texts[:1]))
    assert (found["translations"].numpy()[0], found["scores"].numpy()[0]) == ([b""], [0.0])
    served = signatures["serving_default"]
    found = served(text=tf.constant(texts))
    expected = translator.translate(texts, long_texts=long_texts)
    assert [text.decode() for text in found["translation"].numpy()] == expected
    assert served(text=tf.constant([], tf.string))["translation"].shape == (0,)
    whole = translator.hypotheses(["the dog sleeps"])[0][0]
    assert served(text=tf.constant(["the dog sleeps"]))["score"].numpy() == pytest.approx(
        [whole.score], abs=1e-4
    )
    assert found["truncated"].numpy().any() == (long_texts == "truncate")
    # Blank lines are a part without subwords, whose score does not count.
    two = "The dog sleeps. A child sees the bird."
    assert len(translator.split(f"\n\n{two}")) == 3
    scores = served(text=tf.constant([two, f"\n\n{two}"]))["score"].numpy()
    assert scores[0] < 0 and scores[1] == pytest.approx(scores[0], abs=1e-4)
