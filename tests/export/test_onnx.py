"""ONNX: onnxruntime gives our logits and answers from the exported folder; each weight once."""

import sys

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.export import export_onnx
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer
from tests.export.models import (
    OF_STEPS,
    SLOW_CONFIGS,
    TEXTS,
    check_logits,
    check_refused_window,
    greedy_answers,
    random_translator,
)
from tests.tiny_translator import tiny_model, tiny_tokenizer

onnx = pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("tf2onnx", reason="pip install tf2onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
pytestmark = pytest.mark.tensorflow_only("tf2onnx converts TensorFlow functions")


class Runtime:
    """The two files, loaded by onnxruntime: named arrays to named arrays."""

    def __init__(self, directory):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.encoder = onnxruntime.InferenceSession(directory / "encode.onnx", options)
        self.decoder = onnxruntime.InferenceSession(directory / "decode.onnx", options)

    def encode(self, **inputs):
        return self._run(self.encoder, inputs)

    def decode(self, **inputs):
        return self._run(self.decoder, inputs)

    def _run(self, session, inputs):
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))

    def empty_caches(self, rows):
        return {
            value.name: np.zeros((rows, value.shape[1], 0, value.shape[3]), "float32")
            for value in self.decoder.get_inputs()
            if value.name.startswith("self_")
        }


@pytest.fixture(scope="module")
def directory(greedy_translator, tmp_path_factory):
    return export_onnx(greedy_translator, tmp_path_factory.mktemp("export") / "m")


def test_logits_are_the_models(directory, greedy_translator):
    check_logits(Runtime(directory), greedy_translator)


@pytest.mark.parametrize("config", [*SLOW_CONFIGS, *OF_STEPS], ids=str)
def test_every_kind_of_model(config, tmp_path):
    translator = random_translator(**config)
    check_logits(Runtime(export_onnx(translator, tmp_path / "m")), translator)


def test_greedy_answers_are_the_translators(directory, greedy_translator):
    translator = greedy_translator
    answers = translator.translate(TEXTS)
    assert len(set(answers)) > 5
    assert greedy_answers(Runtime(directory), directory, translator) == answers


@pytest.mark.slow
def test_two_vocabularies_and_a_model_in_bfloat16(tmp_path):
    exact = tiny_model(target_vocab_size=300)
    model = Transformer(exact.config, dtype="mixed_bfloat16")
    model.set_weights(exact.get_weights())
    tokenizers = tiny_tokenizer(), tiny_tokenizer(300)
    directory = export_onnx(Translator(model, *tokenizers), tmp_path / "m")
    assert {path.name for path in directory.iterdir()} == {
        "encode.onnx", "decode.onnx", "weights.bin", "source_tokenizer.model",
        "target_tokenizer.model",
    }  # fmt: skip
    runtime = Runtime(directory)
    source = np.array([[5, 6, 3]], "int32")
    encoded, caches = runtime.encode(source=source), runtime.empty_caches(rows=1)
    found = runtime.decode(tokens=np.array([2], "int32"), **encoded, **caches)["logits"]
    expected = exact({"source": source, "target": np.array([[2]])})[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


class TestContent:
    def test_weights_are_stored_once(self, directory, greedy_translator):
        places = {}
        for name in ("encode", "decode"):
            model = onnx.load(directory / f"{name}.onnx", load_external_data=False)
            for tensor in model.graph.initializer:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                if entries:
                    assert entries["location"] == "weights.bin"
                    places[int(entries["offset"])] = int(entries["length"])
        weights = greedy_translator.model.weights
        matrices = [weight for weight in weights if len(weight.shape) == 2]
        assert sum(places.values()) == 4 * sum(int(np.prod(w.shape)) for w in matrices)

    def test_batch_and_lengths_are_dynamic_and_named(self, directory):
        runtime = Runtime(directory)
        shapes = {value.name: value.shape for value in runtime.decoder.get_inputs()}
        assert shapes["tokens"] == ["rows"]
        assert shapes["source_mask"] == ["batch", "source_length"]
        assert shapes["cross_key_0"] == ["batch", 4, "source_length", 8]
        assert shapes["self_value_0"] == ["rows", 4, "target_length", 8]


class TestRefusals:
    def test_sliding_window(self, tmp_path):
        check_refused_window(export_onnx, tmp_path)

    @pytest.mark.parametrize("package", ["onnx", "tf2onnx"])
    def test_missing_package(self, package, greedy_translator, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, package, None)
        message = rf"needs {package}: pip install '\.\[onnx\]'"
        with pytest.raises(UserError, match=message):
            export_onnx(greedy_translator, tmp_path / "m")

    def test_other_backend(self, greedy_translator, tmp_path, monkeypatch):
        monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
        with pytest.raises(UserError, match="KERAS_BACKEND=tensorflow"):
            export_onnx(greedy_translator, tmp_path / "m")

    def test_operations_that_tf2onnx_does_not_know(self, tmp_path, monkeypatch):
        monkeypatch.setattr("keras_transformer.export.onnx._HANDLERS", {})
        with pytest.raises(UserError, match="Erfc"):
            export_onnx(random_translator(activation="gelu"), tmp_path / "m")
        assert not list(tmp_path.iterdir())

    def test_directory_with_other_files(self, greedy_translator, tmp_path):
        (tmp_path / "thesis.txt").write_text("years of work")
        with pytest.raises(UserError, match="holds other files and no ONNX export"):
            export_onnx(greedy_translator, tmp_path)
