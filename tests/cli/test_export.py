"""`export --format`: every format by name, and the options that only one of them has."""

import sys
import types
from unittest.mock import create_autospec

import pytest

from keras_transformer.decoding import BeamSearch, MinimumLength, NoRepeatNgrams
from keras_transformer.export import formats, litert, saved_model
from keras_transformer.export.formats import FORMATS, ExportFormat
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import EXPORTS, TOKENIZER_FILES, Layout
from keras_transformer.settings.base import Count, Settings, settings_dataclass

FILES = {
    "saved_model": {"saved_model.pb", "variables", "assets", "assets.extra", "fingerprint.pb"},
    "ctranslate2": {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model"},
    "onnx": {"encode.onnx", "decode.onnx", "weights.bin", "tokenizer.model"},
    "litert": {"model.tflite", "tokenizer.model"},
}


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
        assert {path.name for path in output.iterdir()} == FILES[name]


def test_a_new_format_is_one_entry_and_one_function(succeed, refuse, model, tmp_path, monkeypatch):
    def export_pieces(pipeline, directory, limit=2):
        with formats.export_folder(pipeline, directory, "pieces", limit=limit) as aside:
            pieces = pipeline.target_tokenizer.pieces(range(limit))
            (aside / "pieces.txt").write_text(" ".join(pieces))

    @settings_dataclass
    class Options(Settings):
        """The options of `export_pieces`.

        Args:
            limit: Number of pieces.
        """

        limit: Count | None = None

    layout = Layout("list", "pieces.txt", TOKENIZER_FILES)
    monkeypatch.setitem(EXPORTS, "pieces", layout)
    monkeypatch.setitem(FORMATS, "pieces", ExportFormat("pieces", options=Options))
    module = types.SimpleNamespace(export_pieces=export_pieces)
    monkeypatch.setitem(sys.modules, "keras_transformer.export.pieces", module)
    output = tmp_path / "exported"
    options = ["--model", model, "--output", output, "--format"]
    succeed("export", *options, "pieces", "--limit", 3)
    assert (output / "pieces.txt").read_text() == "<pad> <unk> <s>"
    assert (output / "tokenizer.model").exists()
    assert "--limit is for --format pieces" in refuse("export", *options, "onnx", "--limit", 3)
    assert "with --format pieces: number of pieces" in succeed("export", "--help").output


@pytest.mark.parametrize(
    "options",
    ["onnx --beam-size 2", "litert --n-best 2", "onnx --patience 1", "onnx --precision bfloat16",
     "litert --streams 2", "litert --min-length 3", "onnx --no-repeat-ngram 3",
     "ctranslate2 --repetition-penalty 2", "onnx --suppress-unknown", "onnx --shortlist",
     "saved_model --quantization int8"],
)  # fmt: skip
def test_options_of_another_format(options, refuse, model, tmp_path):
    output, words = tmp_path / "exported", options.split()
    quantized = "ctranslate2 or onnx or litert"
    owner = quantized if "--quantization" in options else "saved_model"
    line = refuse("export", "--model", model, "--output", output, "--format", *words)
    assert f"{words[1]} is for --format {owner}" in line
    assert not output.exists()


def test_quantization_is_checked_before_keras_is_imported(refuse, model, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.cli.export.load_backend", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    options = ["--model", model, "--output", tmp_path / "m", "--format", "onnx", "--quantization"]
    assert "needs onnxruntime: pip install" in refuse("export", *options, "int8")
    line = refuse("export", *options, "float16")
    assert "`quantization` must be one of 'int8'. Received: --quantization 'float16'" in line
    assert not (tmp_path / "m").exists()


def test_quantization_reaches_litert(succeed, model, tmp_path, monkeypatch):
    write = create_autospec(litert.export_litert)
    monkeypatch.setattr(litert, "export_litert", write)
    options = ["--format", "litert", "--quantization", "float16", "--output", tmp_path / "m"]
    succeed("export", "--model", model, *options)
    assert write.call_args[1] == {"quantization": "float16"}


def test_options_reach_the_saved_model(succeed, saved_model_directory, tmp_path, monkeypatch):
    write = create_autospec(saved_model.export_saved_model)
    monkeypatch.setattr(saved_model, "export_saved_model", write)
    options = ["--min-length", 9, "--no-repeat-ngram", 1, "--beam-size", 2, "--n-best", 2]
    options += ["--precision", "bfloat16", "--streams", 3, "--output", tmp_path / "exported"]
    succeed("export", "--model", saved_model_directory, *options)
    (translator, output), others = write.call_args
    assert isinstance(translator, Translator) and output == str(tmp_path / "exported")
    search = BeamSearch(2, n_best=2, constraints=[MinimumLength(9), NoRepeatNgrams(1)])
    assert others == {"search": search, "dtype": "bfloat16", "num_streams": 3}
