"""`import keras_transformer` needs the backend alone."""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import keras_transformer

_PACKAGE = pathlib.Path(keras_transformer.__file__).parent
_PROGRAM = """
import sys, keras, keras_transformer
import keras_transformer.layers, keras_transformer.models, keras_transformer.decoding
assert keras.backend.backend() == sys.argv[1], keras.backend.backend()
heavy = [name for name in sys.argv[2:] if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize("package", ["layers", "models", "decoding"])
def test_no_module_imports_tensorflow_when_it_is_imported(package):
    for path in (_PACKAGE / package).glob("**/*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            names.append(getattr(node, "module", None) or "")
            assert not any(name.split(".")[0].startswith("tensorflow") for name in names), path


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_no_tensorflow_on_another_backend(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed: nothing could import it")
    run_import(backend, "tensorflow", "tensorflow_text", "sentencepiece", "sacrebleu")


def test_no_heavy_package_on_tensorflow():
    run_import(
        "tensorflow",
        *("tensorflow_text", "tensorflow_datasets", "sentencepiece", "sacrebleu", "num2words"),
    )


def run_import(backend, *unwanted):
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", _PROGRAM, backend, *unwanted]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
