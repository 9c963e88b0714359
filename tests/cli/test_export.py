"""`export --format`: every format by name, and the options that only one of them has."""

import pytest

from keras_transformer.cli.export import FORMATS, PRECISIONS
from keras_transformer.export import formats, saved_model

FILES = {
    "saved_model": {"saved_model.pb", "variables", "assets", "assets.extra", "fingerprint.pb"},
    "ctranslate2": {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model"},
    "onnx": {"encode.onnx", "decode.onnx", "weights.bin", "tokenizer.model"},
    "litert": {"model.tflite", "tokenizer.model"},
}


@pytest.mark.tensorflow_only("most formats are written there")
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written_and_replaced(name, run, model, tmp_path):
    for package in formats.FORMATS[name].packages:
        pytest.importorskip(package, reason=f"pip install {package}")
    output = tmp_path / "exported"
    for _ in range(2):
        outcome = run("export", "--model", model, "--output", output, "--format", name)
        assert outcome.status == 0, outcome.errors
        assert outcome.errors.splitlines()[-1] == f"wrote {output}"
        assert {path.name for path in output.iterdir()} == FILES[name]


def test_the_names_are_those_of_the_library():
    assert FORMATS == tuple(formats.FORMATS)
    assert PRECISIONS == saved_model.PRECISIONS


@pytest.mark.tensorflow_only("a SavedModel is written there")
def test_weights_in_bfloat16(run, model, tmp_path):
    sizes = []
    for name in PRECISIONS:
        options = ("--precision", name, "--output", tmp_path / name)
        outcome = run("export", "--model", model, *options)
        assert outcome.status == 0, outcome.errors
        data = tmp_path / name / "variables" / "variables.data-00000-of-00001"
        sizes.append(data.stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(
    "options, message",
    [
        ("--format tflite", "invalid choice: 'tflite'"),
        ("--format onnx --beam-size 2", "--beam-size is for --format saved_model"),
        ("--format litert --n-best 2", "--n-best is for --format saved_model"),
        ("--quantization int8", "--quantization is for --format ctranslate2"),
        ("--format onnx --precision bfloat16", "--precision is for --format saved_model"),
        ("--precision int8", "invalid choice: 'int8'"),
    ],
)
def test_options_of_another_format(options, message, run, model, tmp_path):
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
    assert "'int8'" in outcome.errors and "quantization='int3'" in outcome.errors


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_directory_is_not_written_over(name, run, model):
    before = sorted(path.name for path in model.iterdir())
    outcome = run("export", "--model", model, "--output", model, "--format", name)
    assert outcome.status == 2
    assert "holds other files" in outcome.errors
    assert sorted(path.name for path in model.iterdir()) == before
