"""`export --format`: every format by name, and the options that only one of them has."""

from unittest.mock import create_autospec

import pytest

from keras_transformer.decoding import BeamSearch, MinimumLength, NoRepeatNgrams
from keras_transformer.export import saved_model
from keras_transformer.export.formats import FORMATS
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import EXPORTS


@pytest.mark.tensorflow_only("most formats are written there")
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow][x == "ctranslate2" :]) for x in FORMATS]
)
def test_every_format_is_written_and_replaced(name, succeed, model, tmp_path):
    for package in FORMATS[name].packages:
        pytest.importorskip(package, reason=f"pip install {package}")
    output = tmp_path / "exported"
    for _ in range(2):
        outcome = succeed("export", "--model", model, "--output", output, "--format", name)
        assert outcome.errors.splitlines()[-1] == f"wrote {output}"
        assert (output / EXPORTS[name].marker).is_file()


@pytest.mark.parametrize(
    "options",
    [
        "onnx --beam-size 2",
        "litert --streams 2",
        "onnx --shortlist",
        "transformers --quantize int8",
    ],
)
def test_options_of_another_format(options, refuse, model, tmp_path):
    output, words = tmp_path / "exported", options.split()
    quantized = "saved_model or ctranslate2 or onnx or litert"
    owner = quantized if "--quantize" in options else "saved_model"
    line = refuse("export", "--model", model, "--output", output, "--format", *words)
    assert f"{words[1]} is for --format {owner}" in line
    assert not output.exists()


def test_options_reach_the_saved_model(succeed, saved_model_directory, tmp_path, monkeypatch):
    write = create_autospec(saved_model.export_saved_model)
    monkeypatch.setattr(saved_model, "export_saved_model", write)
    options = ["--min-length", 9, "--no-repeat-ngram", 1, "--beam-size", 2, "--n-best", 2]
    options += ["--precision", "bfloat16", "--streams", 3, "--output", tmp_path / "exported"]
    options += ["--quantization", "int8"]  # its name before `--quantize`
    succeed("export", "--model", saved_model_directory, *options)
    (translator, output), others = write.call_args
    assert isinstance(translator, Translator) and output == str(tmp_path / "exported")
    search = BeamSearch(2, n_best=2, constraints=[MinimumLength(9), NoRepeatNgrams(1)])
    types = {"dtype": "bfloat16", "quantization": "int8"}
    assert others == {"search": search, "num_streams": 3, **types}
