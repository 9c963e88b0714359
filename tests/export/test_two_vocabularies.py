"""Exports with two vocabularies: each uses its own for each language."""

import itertools
import json

import pytest

from keras_transformer.data import train_sentencepiece
from keras_transformer.export import export_saved_model
from keras_transformer.inference.translator import Translator
from tests.closeness import assert_close
from tests.export.test_saved_model import ask_process
from tests.tiny_translator import sentence, tiny_model

TEXTS = ["", "two red house", ">>fra<< a dog", *(sentence(1 + seed, seed) for seed in range(6))]
TRANSLATIONS = [sentence(1 + seed % 3, 50 + seed) for seed in range(len(TEXTS))]
# Asks the models in turn, first of each, then again of the first.
CLIENT = """
import json, sys
import tensorflow as tf
import tensorflow_text

texts, translations = (tf.constant(json.loads(some)) for some in sys.argv[1:3])
models = [tf.saved_model.load(path) for path in [*sys.argv[3:], sys.argv[3]]]
answers = []
for model in models:
    best = model.signatures["serving_default"](text=texts)
    pairs = {"text": texts, "translation": translations}
    scores = model.signatures["score"](**pairs)
    outputs = {**best, "log_probability": scores["log_probability"]}
    answers.append({name: output.numpy().tolist() for name, output in outputs.items()})
print(json.dumps(answers, default=bytes.decode))
"""


@pytest.mark.slow
def test_each_model_in_one_process(tmp_path):
    """English to German and back: a BPE and a unigram vocabulary, each on the other's side once."""
    lines = [sentence(2 + seed % 8, seed) for seed in range(300)]
    bpe = train_sentencepiece(lines, 300, symbols=[">>fra<<"])
    unigram = train_sentencepiece(lines[::2] + ["two doors"], 290, "unigram")
    assert bpe.encode_batch(TEXTS) != unigram.encode_batch(TEXTS)
    sizes, translators, paths = {bpe: 300, unigram: 290}, [], []
    for source, target in itertools.permutations(sizes):
        model = tiny_model(vocab_size=sizes[source], target_vocab_size=sizes[target])
        translators.append(Translator(model, source, target, extra_length=8))
        paths.append(export_saved_model(translators[-1], tmp_path / str(len(paths))))
    answers = ask_process(CLIENT, json.dumps(TEXTS), json.dumps(TRANSLATIONS), *paths)
    for found, translator in zip(answers, [*translators, translators[0]], strict=True):
        assert found["translation"] == translator.translate(TEXTS)
        scores = [one.log_probability for one in translator.score(TEXTS, TRANSLATIONS)]
        assert_close(found["log_probability"], scores, scale=1.0)
