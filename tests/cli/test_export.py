"""`export --format`: every format by name, and the options that only one of them has."""

import sys
import types
from unittest.mock import create_autospec

import pytest

from keras_transformer.decoding import BeamSearch, MinimumLength, NoRepeatNgrams
from keras_transformer.export import formats, saved_model
from keras_transformer.export.formats import FORMATS, ExportFormat
from keras_transformer.inference.translator import Translator
from keras_transformer.settings.setting import COUNT, Setting
from tests.tiny_translator import sentence, tiny_translator

FILES = {
    "saved_model": {"saved_model.pb", "variables", "assets", "assets.extra", "fingerprint.pb"},
    "ctranslate2": {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model"},
    "onnx": {"encode.onnx", "decode.onnx", "weights.bin", "tokenizer.model"},
    "litert": {"model.tflite", "tokenizer.model"},
}


def slow_but_one(names):
    """CTranslate2's is the format that is written in the least time."""
    return [x if x == "ctranslate2" else pytest.param(x, marks=pytest.mark.slow) for x in names]


@pytest.mark.tensorflow_only("most formats are written there")
@pytest.mark.parametrize("name", slow_but_one(FORMATS))
def test_every_format_is_written_and_replaced(name, run, model, tmp_path):
    for package in FORMATS[name].packages:
        pytest.importorskip(package, reason=f"pip install {package}")
    output = tmp_path / "exported"
    for _ in range(2):
        outcome = run("export", "--model", model, "--output", output, "--format", name)
        assert outcome.status == 0, outcome.errors
        assert outcome.errors.splitlines()[-1] == f"wrote {output}"
        assert {path.name for path in output.iterdir()} == FILES[name]


def test_a_new_format_is_one_entry_and_one_function(run, model, tmp_path, monkeypatch):
    def export_pieces(pipeline, directory, limit=2):
        with formats.export_folder(pipeline, directory, "pieces", limit=limit) as aside:
            pieces = pipeline.target_tokenizer.pieces(range(limit))
            (aside / "pieces.txt").write_text(" ".join(pieces))

    limit = Setting("limit", None, "number of pieces", COUNT)
    files = ("list", "pieces.txt", formats._TOKENIZER_FILES)
    entry = ExportFormat("pieces", *files, options={"limit": limit})
    monkeypatch.setitem(FORMATS, "pieces", entry)
    module = types.SimpleNamespace(export_pieces=export_pieces)
    monkeypatch.setitem(sys.modules, "keras_transformer.export.pieces", module)
    output = tmp_path / "exported"
    options = ["--model", model, "--output", output, "--format"]
    outcome = run("export", *options, "pieces", "--limit", 3)
    assert outcome.status == 0, outcome.errors
    assert (output / "pieces.txt").read_text() == "<pad> <unk> <s>"
    assert (output / "tokenizer.model").exists()
    assert "--limit is for --format pieces" in run("export", *options, "onnx", "--limit", 3).errors
    assert "with --format pieces: number of pieces" in run("export", "--help").output


@pytest.mark.parametrize(
    "options",
    [
        "--format tflite -> invalid choice: 'tflite'",
        "--format onnx --beam-size 2 -> --beam-size is for --format saved_model",
        "--format litert --n-best 2 -> --n-best is for --format saved_model",
        "--quantization int8 -> --quantization is for --format ctranslate2",
        "--format litert --min-length 3 -> --min-length is for --format saved_model",
        "--format onnx --no-repeat-ngram 3 -> --no-repeat-ngram is for --format saved_model",
        "--format onnx --suppress-unknown -> --suppress-unknown is for --format saved_model",
        "--format ctranslate2 --repetition-penalty 2 -> --repetition-penalty is for --format saved",
        "--format onnx --precision bfloat16 -> --precision is for --format saved_model",
        "--format litert --streams 2 -> --streams is for --format saved_model",
        "--format onnx --patience 1 -> --patience is for --format saved_model",
        "--format onnx --shortlist -> --shortlist is for --format saved_model",
        "--streams 0 -> --streams",
        "--precision int8 -> invalid choice: 'int8'",
    ],
)
def test_options_of_another_format(options, run, model, tmp_path):
    options, message = options.split(" -> ")
    output = tmp_path / "exported"
    outcome = run("export", "--model", model, "--output", output, *options.split())
    assert outcome.status == 2
    assert message in outcome.errors and outcome.errors.count("\n") == 1
    assert not output.exists()


def test_unknown_quantization(run, model, tmp_path):
    pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    options = ["--format", "ctranslate2", "--quantization", "int3"]
    outcome = run("export", "--model", model, "--output", tmp_path / "exported", *options)
    assert outcome.status == 2
    assert "'int8'" in outcome.errors and "--quantization 'int3'" in outcome.errors


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_directory_is_not_written_over(name, run, model):
    before = sorted(path.name for path in model.iterdir())
    outcome = run("export", "--model", model, "--output", model, "--format", name)
    assert outcome.status == 2
    assert "holds other files" in outcome.errors
    assert sorted(path.name for path in model.iterdir()) == before


def test_options_reach_the_saved_model(run, saved_model_directory, tmp_path, monkeypatch):
    write = create_autospec(saved_model.export_saved_model)
    monkeypatch.setattr(saved_model, "export_saved_model", write)
    options = ["--min-length", 9, "--no-repeat-ngram", 1, "--beam-size", 2, "--n-best", 2]
    options += ["--precision", "bfloat16", "--streams", 3, "--output", tmp_path / "exported"]
    outcome = run("export", "--model", saved_model_directory, *options)
    assert outcome.status == 0, outcome.errors
    (translator, output), others = write.call_args
    assert isinstance(translator, Translator) and output == str(tmp_path / "exported")
    constraints = [MinimumLength(9), NoRepeatNgrams(1)]
    search = BeamSearch(2, n_best=2, constraints=constraints)
    assert others == {"search": search, "dtype": "bfloat16", "num_streams": 3}


@pytest.mark.slow
@pytest.mark.tensorflow_only("a SavedModel is written there")
def test_constraints_are_in_the_saved_model(run, model, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text", reason="pip install tensorflow-text")
    options = ["--min-length", 9, "--no-repeat-ngram", 1, "--beam-size", 2]
    outcome = run("export", "--model", model, "--output", tmp_path / "exported", *options)
    assert outcome.status == 0, outcome.errors
    texts = [sentence(2 + seed % 4, seed) for seed in range(7)]
    serve = tensorflow.saved_model.load(tmp_path / "exported").signatures["serving_default"]
    found = [text.decode() for text in serve(tensorflow.constant(texts))["translation"].numpy()]
    translator = Translator.load(model)
    constraints = [MinimumLength(9), NoRepeatNgrams(1)]
    search = BeamSearch(beam_size=2, constraints=constraints)
    assert found == translator.translate(texts, search)
    assert found != translator.translate(texts, BeamSearch(beam_size=2))


@pytest.mark.parametrize("name", slow_but_one(["ctranslate2", "onnx", "litert"]))
@pytest.mark.tensorflow_only("most formats are written there")
def test_constraints_of_the_model_directory_are_warned_of(name, run, tmp_path):
    for package in FORMATS[name].packages:
        pytest.importorskip(package, reason=f"pip install {package}")
    search = BeamSearch(constraints=[MinimumLength(3)])
    directory = tiny_translator(search=search).save(tmp_path / "model")
    options = ("--output", tmp_path / "exported", "--format", name)
    outcome = run("export", "--model", directory, *options)
    assert outcome.status == 0, outcome.errors
    (line,) = [line for line in outcome.errors.splitlines() if "export: warning:" in line]
    assert "does not apply the constraints of the search: MinimumLength(length=3)." in line
