"""LiteRT: its interpreter gives our logits and answers from the exported folder, without Flex."""

import pathlib

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.export import export_litert
from tests.export.models import (
    OF_STEPS,
    SLOW_CONFIGS,
    TEXTS,
    check_logits,
    check_refused_window,
    greedy_answers,
    random_translator,
)

interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install ai-edge-litert")
pytestmark = pytest.mark.tensorflow_only("the converter is TensorFlow's")


class Runtime:
    """The two signatures: named arrays to named arrays."""

    def __init__(self, directory):
        self._interpreter = interpreter.Interpreter(
            model_path=str(directory / "model.tflite"), num_threads=1
        )
        self.encode = self._interpreter.get_signature_runner("encode")
        self.decode = self._interpreter.get_signature_runner("decode")

    def empty_caches(self, rows):
        shapes = {
            name: details["shape_signature"]
            for name, details in self.decode.get_input_details().items()
            if name.startswith("self_")
        }
        return {
            name: np.zeros((rows, shape[1], 0, shape[3]), "float32")
            for name, shape in shapes.items()
        }


@pytest.fixture(scope="module")
def directory(greedy_translator, tmp_path_factory):
    return export_litert(greedy_translator, tmp_path_factory.mktemp("export") / "m")


def test_logits_are_the_models(directory, greedy_translator):
    check_logits(Runtime(directory), greedy_translator)


@pytest.mark.parametrize("config", [*SLOW_CONFIGS, *OF_STEPS], ids=str)
def test_every_kind_of_model(config, tmp_path):
    translator = random_translator(**config)
    check_logits(Runtime(export_litert(translator, tmp_path / "m")), translator)


def test_greedy_answers_are_the_translators(directory, greedy_translator):
    translator = greedy_translator
    answers = translator.translate(TEXTS)
    assert len(set(answers)) > 5
    assert greedy_answers(Runtime(directory), directory, translator) == answers


@pytest.mark.slow
def test_weights_are_stored_once_and_operations_are_the_runtimes_own(tmp_path):
    # Larger than the graph, which takes some 60 kB.
    translator = random_translator(d_model=128, intermediate_dim=1024)
    content = (export_litert(translator, tmp_path / "m") / "model.tflite").read_bytes()
    size = 4 * translator.model.count_params()
    assert size < len(content) < size + 100_000
    assert b"Flex" not in content


def test_all_files_are_written_where_leftovers_are_removed(
    greedy_translator, tmp_path, monkeypatch
):
    """A process may be killed. Elsewhere, its temporary files would stay, with the weights."""
    import tensorflow as tf

    parents, save = [], tf.saved_model.save

    def recorded(module, path, **options):
        parents.extend(pathlib.Path(path).parents)
        return save(module, path, **options)

    monkeypatch.setattr(tf.saved_model, "save", recorded)
    directory = export_litert(greedy_translator, tmp_path / "m")
    assert tmp_path in parents
    assert {path.name for path in directory.iterdir()} == {"model.tflite", "tokenizer.model"}


class TestRefusals:
    def test_sliding_window(self, tmp_path):
        check_refused_window(export_litert, tmp_path)

    def test_other_backend(self, greedy_translator, tmp_path, monkeypatch):
        monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
        with pytest.raises(UserError, match="KERAS_BACKEND=tensorflow"):
            export_litert(greedy_translator, tmp_path / "m")

    def test_directory_with_other_files(self, greedy_translator, tmp_path):
        (tmp_path / "thesis.txt").write_text("years of work")
        with pytest.raises(UserError, match="holds other files and no LiteRT export"):
            export_litert(greedy_translator, tmp_path)
