"""Exports of an imported model: two tokenizers of one vocabulary, a bias, languages."""

import pytest

from keras_transformer.bridges import load_opus_mt
from keras_transformer.decoding import GreedySearch
from keras_transformer.export import export_ctranslate2, export_saved_model
from tests.bridges.published import PORTUGUESE, SOURCES, learn_files, save_arrays

TEXTS = [f"{PORTUGUESE} {text}" for text in (*SOURCES, "an unknown ☃ word", "dogs")]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    learn_files(folder, ("<s>", PORTUGUESE, ">>pob<<"))
    save_arrays(folder)
    translator = load_opus_mt(folder)
    translator.extra_length = 8
    return translator


@pytest.mark.tensorflow_only("a SavedModel is written there")
@pytest.mark.slow
def test_a_saved_model_answers_alike_and_needs_a_language(translator, tmp_path, signatures_of):
    import tensorflow as tf

    signatures_of("serving_default")
    export_saved_model(translator, tmp_path)
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    answers = serve(text=tf.constant([*TEXTS, ""]))["translation"].numpy()
    assert [answer.decode() for answer in answers] == translator.translate([*TEXTS, ""])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"target language: {PORTUGUESE}"):
        serve(text=tf.constant(["a dog"]))


def test_ctranslate2_finds_the_answers_of_greedy_search(translator, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    export_ctranslate2(translator, tmp_path)
    engine = ctranslate2.Translator(str(tmp_path))
    tokenizer = translator.source_tokenizer
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        [result] = engine.translate_batch(
            [tokenizer.pieces(ids)],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=len(ids) + translator.extra_length,
        )
        [[ours]] = translator.hypotheses([text], GreedySearch())
        tokens = [token for token in ours.tokens if token > 3]
        assert result.hypotheses[0] == translator.target_tokenizer.pieces(tokens)
