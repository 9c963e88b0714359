"""`serve` finds models without loading them; a model directory has the signatures of its export."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from keras_transformer.errors import UserError
from keras_transformer.inference.batch_inference import one_answer
from keras_transformer.serving.models import ServedModel, find_models
from tests.closeness import assert_close
from tests.serving.echo import serving
from tests.tiny_parser import tiny_parser
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


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["missing"], "Model directory not found: 'missing'"),
        (["saved/saved_model.pb"], "Expected a model directory but .* is a file"),
        (["unfinished"], "A training writes it at its end: run the same training again"),
        (["runs"], "A model is a folder with config.json or saved_model.pb.* Received: 'runs'"),
        (["runs/en-de", "saved", "runs/en-de"], "a name of its own.* Received: 'en-de'"),
        (["a/b=saved"], "without / and :"),
    ],
)
def test_errors(folder, monkeypatch, texts, error):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=error):
        find_models(texts)


def test_threads_that_need_a_model_at_once_load_it_once(folder, monkeypatch):
    loads = []

    def load(self):
        loads.append(self)
        time.sleep(0.05)
        return {}

    monkeypatch.setattr(ServedModel, "_load_saved_model", load)
    [model] = find_models([str(folder / "saved")])["saved"].values()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: model.load(), range(8)))
    assert loads == [model] and model.signatures == {}


@pytest.mark.slow
@pytest.mark.tensorflow_only("the signatures are functions of TensorFlow")
def test_a_model_directory_answers_like_its_translator(tmp_path):
    translator = tiny_translator(max_source_length=40)
    translator.save(tmp_path / "model")
    model = find_models([str(tmp_path / "model")])["model"][1]
    model.warm_up()
    texts = [sentence(1 + seed % 7, seed) for seed in range(9)] + ["", sentence(60)]
    with serving(model, max_batch_size=4) as client:
        status, answer = client.predict({"inputs": texts}, "model")
        assert status == 200
        alone = [client.predict({"instances": [text]}, "model")[1] for text in texts]
        limits = {"signature_name": "limits", "inputs": texts[:2]}
        status, shown = client.predict(limits, "model")
    expected = translator.hypotheses(texts, one_answer(translator.search))
    answer = answer["outputs"]
    assert answer["translation"] == [found[0].text for found in expected]
    assert_close(answer["score"], [found[0].score for found in expected], scale=1.0)
    assert answer["truncated"] == [False] * 10 + [True]
    assert [found["predictions"][0]["translation"] for found in alone] == answer["translation"]
    assert shown["outputs"]["max_source_tokens"] == [40, 40]


@pytest.mark.slow
@pytest.mark.tensorflow_only("the signatures are functions of TensorFlow")
def test_a_parser_answers_with_trees(tmp_path):
    parser = tiny_parser()
    parser.save(tmp_path / "parser")
    model = find_models([str(tmp_path / "parser")])["parser"][1]
    model.warm_up()
    texts = ["a dog runs", "the cat"]
    with serving(model) as client:
        _, answer = client.predict({"instances": texts}, "parser")
    assert [row["tree"] for row in answer["predictions"]] == list(map(str, parser.parse(texts)))


@pytest.mark.tensorflow_only("it is a SavedModel")
def test_signatures_of_other_inputs_are_not_served(tmp_path):
    numbers = tf.Module()
    numbers.double = tf.function(lambda x: 2 * x, [tf.TensorSpec([None], tf.float32, "x")])
    tf.saved_model.save(numbers, str(tmp_path / "numbers"), signatures=numbers.double)
    [model] = find_models([str(tmp_path / "numbers")])["numbers"].values()
    with pytest.raises(UserError, match=r"`serving_default` from strings \[batch\]"):
        model.warm_up()
