"""What `serve` finds in a folder, without loading it, and the signatures of a model directory."""

import json

import pytest

from keras_transformer.errors import UserError
from keras_transformer.serving.models import find_models


@pytest.fixture
def folder(tmp_path):
    """A model directory, a SavedModel, and a folder of versions, without their contents."""
    for name in ("runs/en-de/config.json", "saved/saved_model.pb", "en_fr/2/saved_model.pb",
                 "en_fr/10/saved_model.pb", "en_fr/old/saved_model.pb"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"task": "translation"}))
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
    monkeypatch.chdir(runs)
    assert found(".") == {"en-de": {1: runs}}
    assert find_models(["."])["en-de"][1].card == {"task": "translation"}


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["missing"], "Model directory not found: 'missing'"),
        (["saved/saved_model.pb"], "Model directory not found"),
        (["runs"], "A model is a folder with config.json or saved_model.pb.* Received: 'runs'"),
        (["runs/en-de", "saved", "runs/en-de"], "a name of its own.* Received: 'en-de'"),
        (["a/b=saved"], "without / and :"),
        (["a:b=saved"], "without / and :"),
    ],
)
def test_errors(folder, monkeypatch, texts, error):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=error):
        find_models(texts)
