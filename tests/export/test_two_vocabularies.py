"""A SavedModel with two vocabularies uses each for its own language, beside other models too."""

import itertools
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer.data import BOS_ID, EOS_ID, train_sentencepiece
from keras_transformer.decoding import BeamSearch
from keras_transformer.export import export_saved_model
from keras_transformer.inference.translator import Translator
from tests.tiny_translator import sentence, tiny_model

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")
if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is written on the TensorFlow backend", allow_module_level=True)

TEXTS = ["", "a dog runs", "two red house", *(sentence(1 + seed, seed) for seed in range(6))]
TRANSLATIONS = [sentence(1 + seed % 3, 50 + seed) for seed in range(len(TEXTS))]
# Asks the signatures of all models in turn, first of each, then again of the first.
CLIENT = """
import json, sys
import tensorflow as tf
import tensorflow_text

texts, translations = (tf.constant(some) for some in json.loads(sys.argv[1]))
models = [tf.saved_model.load(path) for path in [*sys.argv[2:], sys.argv[2]]]
answers = []
for model in models:
    one = {}
    for name, function in model.signatures.items():
        inputs = {"text": texts, "translation": translations}
        inputs = {key: inputs[key] for key in function.structured_input_signature[1]}
        one[name] = {
            key: [[x.decode() if isinstance(x, bytes) else x for x in row] if value.ndim > 1 else
                  row.decode() if isinstance(row, bytes) else row for row in value.numpy().tolist()]
            for key, value in function(**inputs).items()
        }
    answers.append(one)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def translators():
    """English to German and back: a BPE and a unigram vocabulary, each on the other's side once."""
    lines = [sentence(2 + seed % 8, seed) for seed in range(300)]
    bpe = train_sentencepiece(lines, 300)
    unigram = train_sentencepiece(lines[::2] + ["two doors"], 290, "unigram")
    sizes = {bpe: 300, unigram: 290}
    return [
        Translator(
            tiny_model(vocab_size=sizes[source], target_vocab_size=sizes[target]),
            source,
            target,
            extra_length=8,
        )
        for source, target in itertools.permutations(sizes)
    ]


@pytest.fixture(scope="module")
def answers(translators, tmp_path_factory):
    """Answers of a process that only loads the two SavedModels, the first one twice."""
    folder = tmp_path_factory.mktemp("two")
    paths = [
        str(export_saved_model(translator, folder / str(number)))
        for number, translator in enumerate(translators)
    ]
    arguments = [json.dumps([TEXTS, TRANSLATIONS]), *paths]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("number", [0, 1, 2])
class TestEachModelInOneProcess:
    def test_translations(self, answers, translators, number):
        found, expected = answers[number], translators[number % 2].hypotheses(TEXTS)
        assert found["serving_default"]["translation"] == [row[0].text for row in expected]
        scores = [row[0].score for row in expected]
        np.testing.assert_allclose(found["serving_default"]["score"], scores, rtol=1e-4)
        assert len({row[0].text for row in expected}) > 3

    def test_several_translations(self, answers, translators, number):
        found, search = answers[number]["n_best"], BeamSearch(n_best=4)
        expected = translators[number % 2].hypotheses(TEXTS[1:], search)  # The first is empty.
        assert found["translations"][1:] == [[one.text for one in row] for row in expected]
        scores = [[one.score for one in row] for row in expected]
        np.testing.assert_allclose(found["scores"][1:], scores, rtol=1e-4)

    def test_lengths(self, answers, translators, number):
        rows = translators[number % 2].source_tokenizer.encode_batch(TEXTS)
        assert answers[number]["limits"]["num_tokens"] == [len(row) + 1 for row in rows]

    def test_scores_and_pieces(self, answers, translators, number):
        found, translator = answers[number], translators[number % 2]
        expected = translator.score(TEXTS, TRANSLATIONS)
        sums = [one.log_probability for one in expected]
        np.testing.assert_allclose(found["score"]["log_probability"], sums, rtol=1e-4)
        assert found["score"]["num_tokens"] == [one.num_tokens for one in expected]
        for name, tokenizer, texts in (
            ("source_tokens", translator.source_tokenizer, TEXTS),
            ("target_tokens", translator.target_tokenizer, TRANSLATIONS),
        ):
            pieces = [tokenizer.pieces([*ids, EOS_ID]) for ids in tokenizer.encode_batch(texts)]
            assert [[piece for piece in row if piece] for row in found["attention"][name]] == pieces

    def test_attention(self, answers, translators, number):
        found, translator, row = (
            answers[number]["attention"]["attention"],
            translators[number % 2],
            5,
        )
        source = [*translator.source_tokenizer.encode(TEXTS[row]), EOS_ID]
        target = [BOS_ID, *translator.target_tokenizer.encode(TRANSLATIONS[row])]
        scores = translator.model.attention_scores(np.array([source]), np.array([target]))["cross"]
        expected = np.mean(scores[0], axis=1)[0]
        weights = np.array(found[row])[: len(target), : len(source)]
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)


def test_the_vocabularies_differ(translators):
    """Else the tests above could not fail."""
    first, second = (translator.source_tokenizer for translator in translators)
    assert first.encode_batch(TEXTS) != second.encode_batch(TEXTS)
    assert [first.pieces([i]) for i in range(290)] != [second.pieces([i]) for i in range(290)]
