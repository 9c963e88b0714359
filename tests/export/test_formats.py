"""What every export format refuses before anything is written, and what it warns of."""

import logging
import sys

import pytest

from keras_transformer.decoding import BeamSearch, MinimumLength
from keras_transformer.errors import UserError
from keras_transformer.export import check_export_directory, export
from keras_transformer.export.formats import FORMATS, export_folder
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble
from tests.tiny_translator import tiny_model, tiny_tokenizer, tiny_translator

pytestmark = pytest.mark.tensorflow_only("most formats are written there")
WITHOUT_SEARCH = [name for name in FORMATS if not FORMATS[name].includes_search]


def require(name):
    """Skips the test if a package of a format is missing."""
    for package in FORMATS[name].packages:
        pytest.importorskip(package, reason=f"pip install {package}")


def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(translator, tmp_path):
    with pytest.raises(UserError, match="cannot open a SavedModel whose path has .* Received"):
        export(translator, tmp_path / "out [sm]" / "1")
    check_export_directory(tmp_path / "out [sm]", "litert")


@pytest.mark.parametrize("name", ["thesis.txt", "variables/a/b"])
def test_an_export_with_a_file_of_another_origin_is_refused(translator, tmp_path, name):
    (tmp_path / "saved_model.pb").write_bytes(b"old")
    check_export_directory(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("years of work")
    message = f"earlier SavedModel without other files. .* with '{name}'"
    with pytest.raises(UserError, match=message):
        export(translator, tmp_path)
    assert (tmp_path / name).read_text() == "years of work"
    assert (tmp_path / "saved_model.pb").read_bytes() == b"old"


def test_another_backend_is_refused(translator, tmp_path, monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(UserError, match="KERAS_BACKEND=tensorflow"):
        export(translator, tmp_path / "m", "onnx")


def test_a_missing_package_is_named(translator, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"needs ctranslate2: pip install '\.\[ctranslate2\]'"):
        export(translator, tmp_path / "m", "ctranslate2")


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("saved_model", {"dtype": "int8"}, "`dtype` must be one of 'float32', 'bfloat16'"),
        ("saved_model", {"num_streams": 0}, "num_streams=0"),
        ("ctranslate2", {"quantization": "int3"}, "'int8'.* Received: quantization='int3'"),
        ("onnx", {"quantization": "float16"}, "one of 'int8'. .*='float16', format='onnx'"),
    ],
)
def test_a_wrong_option_is_named(name, options, message, translator, tmp_path):
    with pytest.raises(UserError, match=message):
        export(translator, tmp_path / "m", name, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", WITHOUT_SEARCH)
def test_an_ensemble_is_refused(name, tmp_path):
    require(name)
    translator = Translator(Ensemble([tiny_model()]), tiny_tokenizer())
    with pytest.raises(UserError, match="holds one model; .* Ensemble of 1$"):
        export(translator, tmp_path / "m", name)
    assert not list(tmp_path.iterdir())


class Own:
    """A constraint of a user: its name is said, not where it is in memory."""

    def start(self, max_lengths, width):
        return ()

    def __call__(self, state, log_probabilities, generated):
        return state, log_probabilities


@pytest.mark.parametrize(
    "name", [name for name in WITHOUT_SEARCH if not FORMATS[name].has_own_form]
)
def test_constraints_of_the_search_are_named_once(name, tmp_path, caplog):
    require(name)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        for constraints in ((), (MinimumLength(3), Own())):
            search = BeamSearch(constraints=constraints)
            with export_folder(
                tiny_translator(search=search), tmp_path / str(len(constraints)), name
            ):
                pass
    (message,) = caplog.messages
    assert message.endswith("of the search: MinimumLength(length=3), Own.")
    assert list((tmp_path / "2").iterdir())
