"""`serve` finds models by the names of their folders, without loading them."""

import json

import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.errors import UserError
from keras_transformer.export import export_saved_model
from keras_transformer.inference import SentenceProfile
from keras_transformer.layouts import IN_SAVED_MODEL
from keras_transformer.models import processor
from keras_transformer.serving.models import find_models
from keras_transformer.serving.page import parts
from tests.closeness import assert_close
from tests.tiny_translator import sentence, tiny_translator


@pytest.fixture
def folder(tmp_path):
    """A model directory, a SavedModel, and a folder of versions, without their contents."""
    for name in ("runs/en-de/config.json", "saved/saved_model.pb", "en_fr/2/saved_model.pb",
                 "en_fr/10/saved_model.pb", "en_fr/old/saved_model.pb"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"task": "translation"}))
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished/training.json").touch()
    return tmp_path


def found(*texts):
    models = find_models(map(str, texts))
    return {n: {number: m.path for number, m in versions.items()} for n, versions in models.items()}


def test_names_and_versions(folder, monkeypatch):
    runs, saved, versions = folder / "runs/en-de", folder / "saved", folder / "en_fr"
    assert found(runs, saved) == {"en-de": {1: runs}, "saved": {1: saved}}
    assert found(versions) == {"en_fr": {2: versions / "2", 10: versions / "10"}}
    assert found(versions / "2") == {"en_fr": {2: versions / "2"}}
    assert found(f"a={runs}", f"b={runs}") == {"a": {1: runs}, "b": {1: runs}}
    equal = runs.rename(folder / "lr=0.1")
    assert found(equal, f"a={equal}") == {"lr=0.1": {1: equal}, "a": {1: equal}}
    equal.rename(runs)
    monkeypatch.chdir(runs)
    assert found(".") == {"en-de": {1: runs}}
    assert find_models(["."])["en-de"][1].card == {"task": "translation"}


@pytest.mark.parametrize(("texts", "error"), [
    (["missing"], "Model directory not found: 'missing'"),
    (["unfinished"], "A training writes it at its end: run the same training again"),
    (["runs"], "A model is a folder with config.json or saved_model.pb.* Received: 'runs'"),
    (["runs/en-de", "saved", "runs/en-de"], "a name of its own.* Received: 'en-de'"),
])  # fmt: skip
def test_errors(folder, monkeypatch, texts, error):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=error):
        find_models(texts)


@pytest.mark.tensorflow_only("it is a SavedModel")
def test_signatures_of_other_inputs_are_not_served(tmp_path):
    numbers = tf.Module()
    numbers.double = tf.function(lambda x: 2 * x, [tf.TensorSpec([None], tf.float32, "x")])
    tf.saved_model.save(numbers, str(tmp_path / "numbers"), signatures=numbers.double)
    [model] = find_models([str(tmp_path / "numbers")])["numbers"].values()
    with pytest.raises(UserError, match=r"`serving_default` from strings \[batch\]"):
        model.warm_up()


@pytest.mark.tensorflow_only("it is a SavedModel")
@pytest.mark.parametrize("precision, is_fast, warns", [
    ("bfloat16", False, True), ("bfloat16", True, False), ("float32", False, False)
])  # fmt: skip
def test_a_model_in_bfloat16_is_warned_of(precision, is_fast, warns, tmp_path, monkeypatch, caplog):
    tf.saved_model.save(tf.Module(), str(tmp_path))
    inside = tmp_path / IN_SAVED_MODEL
    inside.mkdir(parents=True)
    (inside / "config.json").write_text(json.dumps({"precision": precision}))
    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: is_fast)
    [model] = find_models([f"model={tmp_path}"])["model"].values()
    model.load()
    assert ("export it with --precision float32" in caplog.text) == warns


@pytest.mark.tensorflow_only("it is a SavedModel")
def test_an_export_without_a_model_directory_has_its_settings(tmp_path, monkeypatch, caplog):
    settings = json.dumps({"precision": "bfloat16", "search": {"name": "sampling"}})

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def limits(text):
        return {"settings": tf.fill(tf.shape(text), settings)}

    tf.saved_model.save(tf.Module(), str(tmp_path), signatures={"limits": limits})
    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: False)
    [model] = find_models([f"model={tmp_path}"])["model"].values()
    model.load()
    assert "export it with --precision float32" in caplog.text
    assert model.signatures["limits"].is_random


@pytest.mark.tensorflow_only("the server needs it")
def test_a_model_directory_is_served_in_int8(tmp_path):
    expected = Translator.load(tiny_translator().save(tmp_path / "model"))
    expected.quantize()
    [model] = find_models([str(tmp_path / "model")], quantize="int8")["model"].values()
    model.load()
    text = sentence(5)
    answer = model.signatures["serving_default"]({"text": [text.encode()]})
    [[hypothesis]] = expected.hypotheses([text])
    assert_close(answer["score"], [hypothesis.score])
    [plain] = Translator.load(tmp_path / "model").hypotheses([text])
    assert abs(plain[0].score - hypothesis.score) > 1e-4
    assert model.pipeline.model.target_embedding.embedding.quantization_mode == "int8"


@pytest.mark.parametrize("option", [{"quantize": "int8"}, {"engine": "ctranslate2"}], ids=str)
def test_a_saved_model_has_its_own_settings(option, tmp_path):
    (tmp_path / "saved_model.pb").touch()
    [model] = find_models([f"model={tmp_path}"], **option)["model"].values()
    with pytest.raises(UserError, match=f"--{next(iter(option))} of serve is for model direct"):
        model.load()


@pytest.mark.tensorflow_only("it is a SavedModel")
def test_the_page_splits_texts_for_an_export_without_a_model_directory(tmp_path, signatures_of):
    signatures_of("limits")
    profile = SentenceProfile(20, 40, single_sentences=True)
    translator = tiny_translator(sentence_profile=profile)
    export_saved_model(translator, tmp_path / "model", quantization="int8")
    [model] = find_models([str(tmp_path / "model")])["model"].values()
    model.load()
    [found] = parts(model, ["A red house. A red dog."])["parts"]
    assert [text for _, text in found] == ["A red house. ", "A red dog."]
