"""An import loads the backend alone and changes nothing else."""

import importlib.util
import os
import subprocess
import sys

import pytest

_IMPORT = """
import sys, keras, keras_transformer
import keras_transformer.layers, keras_transformer.models, keras_transformer.decoding
assert keras.backend.backend() == sys.argv[1], keras.backend.backend()
heavy = [name for name in sys.argv[2:] if name in sys.modules]
assert not heavy, heavy
"""
# What is heavy comes with the call that needs it.
_DATA = f"""{_IMPORT}
import keras_transformer.data as data
heavy = {{"tensorflow_text", "tensorflow_datasets", "num2words"}} & set(sys.modules)
assert not heavy, heavy
missing = [name for name in data.__all__ if not hasattr(data, name)]
assert not missing, missing
"""
# Modules to import first follow as arguments. The arguments of the command change nothing.
_STATE = """
import importlib, os, signal, sys
for name in sys.argv[1:]:
    importlib.import_module(name)

def state():
    files = [(number, os.stat(number)) for number in range(64) if is_open(number)]
    streams = [id(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return files, streams, handlers, dict(os.environ), list(sys.argv), list(sys.path)

def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False

sys.argv[0] = "keras-transformer"
before = state()
import keras_transformer
assert state() == before
assert ("keras_transformer.training" in sys.modules) == ("keras" in sys.argv)
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.slow
def test_an_import_on_another_backend_brings_no_tensorflow(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    run(_IMPORT, backend, "tensorflow", "sentencepiece", "sacrebleu", KERAS_BACKEND=backend)


def test_an_import_after_keras_changes_nothing_else_and_no_heavy_package_comes():
    """Keras learns the layers if it is there."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    unwanted = ["tensorflow_text", "tensorflow_datasets", "sentencepiece", "sacrebleu", "num2words"]
    program = f"{_STATE}\nsys.argv[1:] = ['tensorflow', *{unwanted}]\n{_DATA}"
    run(program, "keras", KERAS_BACKEND="tensorflow")


def test_errors_about_published_models_come_before_keras():
    run("import keras_transformer.bridges.hub, sys; assert 'keras' not in sys.modules")


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small"])  # Muon and Adam
def test_another_process_loads_a_compiled_model(preset, tmp_path):
    """With the state of its optimizer."""
    import keras

    from keras_transformer import Transformer, get_preset
    from keras_transformer.training import compile_model

    model = Transformer.from_preset(preset, vocab_size=20)
    compile_model(model, get_preset(preset).recipe)
    ids = keras.ops.ones((2, 3), "int32")
    model.fit({"source": ids, "target": ids}, ids, verbose=0)
    model.save(tmp_path / "model.keras")
    program = "import keras, keras_transformer, sys; model = keras.saving.load_model(sys.argv[1]); "
    run(program + "assert int(model.optimizer.iterations) == 1", str(tmp_path / "model.keras"))


def run(program, *arguments, **variables):
    environment = {**os.environ, **variables}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-W", "error::ImportWarning", "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
