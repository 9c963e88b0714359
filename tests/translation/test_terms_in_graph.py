"""A glossary in the graph: finds, answers and spaces are those of Python."""

import numpy as np
import pytest

from keras_transformer.decoding import GreedySearch, Sampling
from keras_transformer.errors import UserError
from keras_transformer.inference import Glossary, SentenceProfile
from keras_transformer.serving.models import ServedModel
from keras_transformer.translation.signatures import TranslatorFunctions
from keras_transformer.translation.terms_in_graph import GraphGlossary
from tests.inference.test_glossary import TERMS, TEXTS, _give_shortlist, tiny_translator
from tests.inference.test_languages import make_translator

pytestmark = pytest.mark.tensorflow_only("the graph is TensorFlow's")
GLOSSARY = Glossary({**TERMS, "狗": "cat", "C++": "cat", "I": "boat"}, keep_placeholders=True)
ODD = ["I i C++ 狗狗", "ДОГ Dog ", "%1$s {a} <i>x</i>", " ", "a\x00dog", "dog\u00a0red   dog"]


def test_terms_are_those_of_python():
    import tensorflow as tf

    tokenizer = tiny_translator().target_tokenizer
    placeholders = Glossary({}, keep_placeholders=True)  # They need no terms.
    for glossary, texts in ((placeholders, ["a {dog}", ""]), (GLOSSARY, TEXTS + ODD)):
        in_graph = GraphGlossary(glossary, tokenizer, tokenizer.in_graph())
        found = in_graph.encode(tf.constant(texts), tf.fill([len(texts)], 999)).numpy()
        rows = [[ids[ids != 0].tolist() for ids in row if ids[0]] for row in found]
        assert rows == [glossary.encode(text, tokenizer) for text in texts]
    # What does not fit, with EOS, is left out.
    length = len(GLOSSARY.encode("dog", tokenizer)[0])
    for limit in (length, length + 1):
        found = in_graph.encode(tf.constant(["dog and small"]), tf.constant([limit])).numpy()
        assert np.count_nonzero(found) == (length if limit > length else 0)


_SLOW = pytest.param("greedy, shortlist, quantized", marks=pytest.mark.slow)


@pytest.mark.parametrize("cell", ["plain", _SLOW])
def test_served_answers_are_those_of_python(cell, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr("keras_transformer.inference.shortlist.SIZES", (310, 4096))
    translator, texts = tiny_translator(), [*TEXTS, "A dog. A small house. The boat."]
    translator.sentence_profile = SentenceProfile(20, 60, single_sentences=True)
    if cell != "plain":
        translator.search = GreedySearch()
        _give_shortlist(translator)
        translator.model.quantize("int8")
    translator.glossary = GLOSSARY
    served = TranslatorFunctions(translator, translator.search).module
    # The candidates of a shortlist are shared by a batch.
    for batch in [texts] if cell == "plain" else [[text] for text in texts]:
        found = served.serving_default(tf.constant(batch))["translation"].numpy()
        assert [answer.decode() for answer in found] == translator.translate(batch)


def test_a_model_of_several_languages_has_terms_in_the_graph(tmp_path):
    translator = make_translator()
    translator.glossary = Glossary({"red": "a"}, keep_placeholders=True)
    translator.save(tmp_path)
    model = ServedModel("model", 1, tmp_path)
    model.glossary = translator.glossary
    model.load()
    texts = {
        "text": [b"a red house {a}"],
        "source_language": [b"fr"],
        "target_language": [b"zho_Hant"],
    }
    found = model.signatures["serving_default"](texts)["translation"][0].decode()
    expected = translator.with_languages("fr", "zho_Hant").translate(["a red house {a}"])
    assert [found] == expected


def test_what_cannot_be_served_is_refused(tmp_path):
    import tensorflow as tf

    (tmp_path / "saved_model.pb").touch()
    model = ServedModel("model", 1, tmp_path)
    model.glossary = GLOSSARY
    with pytest.raises(UserError, match="--glossary of serve is for model directories"):
        model.load()
    translator = tiny_translator(search=Sampling())
    translator.glossary = GLOSSARY
    with pytest.raises(UserError, match="cannot be sampled"):
        TranslatorFunctions(translator, translator.search).module.serving_default(
            tf.constant(["a"])
        )
