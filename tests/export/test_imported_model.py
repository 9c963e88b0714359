"""Exports of an imported model: two tokenizers of one vocabulary, a bias, languages."""

import numpy as np
import pytest

from keras_transformer.bridges import load_opus_mt
from keras_transformer.export import export_saved_model
from keras_transformer.export.saved_model import warmup_texts
from tests.bridges.published import PORTUGUESE, SOURCES, learn_files, save_arrays
from tests.closeness import assert_close

TEXTS = [f"{PORTUGUESE} {text}" for text in (*SOURCES, "an unknown ☃ word", "dogs")]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    learn_files(folder, ("<s>", PORTUGUESE, ">>pob<<"))
    save_arrays(folder)
    translator = load_opus_mt(folder)
    translator.extra_length = 8
    return translator


# All that `str.strip` removes, and no more.
BLANK = "".join(letter for letter in map(chr, range(0x3001)) if letter.isspace())


@pytest.mark.tensorflow_only("a SavedModel is written there")
def test_a_text_without_a_language_fails_alone_in_the_server(translator, tmp_path):
    from keras_transformer.serving.models import ServedModel

    translator.save(tmp_path)
    model = ServedModel("model", 1, tmp_path)
    model.load()
    texts = [TEXTS[0], "a dog", TEXTS[1], ">>deu<< a", "", BLANK, "\u3000", "\xa0", "\u200b"]
    lacks = np.array([False, True, False, True, *[False] * 4, True])
    texts = np.array([text.encode() for text in texts])
    answer = model.signatures["serving_default"]
    found, right = answer({"text": texts}), answer({"text": texts[~lacks]})
    assert set(found["translation"][lacks]) == {b""} == set(right["translation"][2:])
    assert found["translation"][~lacks].tolist() == right["translation"].tolist()
    assert all(right["translation"][:2]) and (found["score"][lacks] == -np.inf).all()
    assert_close(found["score"][~lacks], right["score"])
    pairs = {"text": texts, "translation": [b"Hund"] * len(texts)}
    scores = model.signatures["score"](pairs)["log_probability"]
    assert (np.isneginf(scores) == lacks).all() and np.isfinite(scores[~lacks]).all()
    for request in warmup_texts(translator.source_tokenizer):
        assert all(translator.source_tokenizer.encode_batch(request))


@pytest.mark.tensorflow_only("a SavedModel is written there")
@pytest.mark.slow
def test_a_saved_model_answers_alike(translator, tmp_path, signatures_of):
    import tensorflow as tf

    signatures_of("serving_default")
    export_saved_model(translator, tmp_path)
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    texts = [*TEXTS, ""]
    answers = serve(text=tf.constant([*texts, "a dog"]))["translation"].numpy()
    assert [answer.decode() for answer in answers] == [*translator.translate(texts), ""]
