"""SavedModel: raw text in a process that knows only TensorFlow; the Translator's answers; small."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling
from keras_transformer.export import export_saved_model
from keras_transformer.inference.translator import Translator
from tests.closeness import assert_close
from tests.export.graph_operations import ALLOWED, operations
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

NORMAL = sentence(5, seed=5)
LONG = sentence(300, seed=1)
MIXED = [b"", LONG.encode(), "😀🎉🏠".encode(), "红色的房子".encode(), b"\xff\xfe broken"]
MIXED.append(NORMAL.encode())

# A process of its own, that has neither Keras nor this library.
CLIENT = """
import json, sys
import tensorflow as tf
import tensorflow_text

assert not any(name.startswith("keras_transformer") for name in sys.modules)
loaded = tf.saved_model.load(sys.argv[1])
texts = [bytes.fromhex(text) for text in sys.argv[2:]]
best = loaded.signatures["serving_default"](text=tf.constant(texts))
several = loaded.signatures["n_best"](text=tf.constant(texts))
pairs = {"text": tf.constant(texts), "translation": tf.constant(texts[::-1])}
others = {
    name: loaded.signatures[name](**{one: pairs[one] for one in inputs})
    for name, inputs in (("score", pairs), ("attention", pairs), ("limits", ["text"]))
}
print(json.dumps({
    "translation": [text.decode() for text in best["translation"].numpy()],
    "score": best["score"].numpy().tolist(),
    "translations": [[text.decode() for text in row] for row in several["translations"].numpy()],
    "scores": several["scores"].numpy().tolist(),
    "others": {
        name: {one: output.numpy().tolist() for one, output in outputs.items()}
        for name, outputs in others.items()
    },
}, default=bytes.decode))
"""


@pytest.fixture(scope="module")
def answers(exported):
    """What a fresh process answers to the mixed batch."""
    return ask_process(CLIENT, exported, *(text.hex() for text in MIXED))


def ask_process(client, *arguments):
    """Returns what a fresh process prints in its last line, from JSON."""
    command = [sys.executable, "-c", client, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:  # Our package is not on the path there.
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


class TestFreshProcess:
    def test_answers_equal_the_translators(self, answers, translator):
        texts = [text.decode("utf-8", "replace") for text in MIXED]
        expected = translator.hypotheses(texts, BeamSearch(n_best=4))
        found = answers["translations"], answers["scores"]
        for texts, scores, row in zip(*found, expected, strict=True):
            assert texts == [answer.text for answer in row] + [""] * (4 - len(row))
            assert_close(scores[: len(row)], [answer.score for answer in row], scale=1.0)
        assert answers["translation"] == [row[0] for row in answers["translations"]]
        assert answers["score"] == [row[0] for row in answers["scores"]]
        assert answers["translation"][0] == "" and answers["score"][0] == 0.0

    def test_other_signatures_answer_as_in_this_process(self, answers, loaded):
        inputs = {"text": tf.constant(MIXED), "translation": tf.constant(MIXED[::-1])}
        for name, found in answers["others"].items():
            signature = loaded.signatures[name]
            names = signature.structured_input_signature[1]
            outputs = signature(**{one: inputs[one] for one in names})
            assert found.keys() == outputs.keys()
            for one, output in outputs.items():
                if output.dtype == tf.string:
                    expected = json.dumps(output.numpy().tolist(), default=bytes.decode)
                    assert found[one] == json.loads(expected)
                else:
                    assert_close(found[one], output, scale=1.0)


class TestContent:
    def test_parameters_are_stored_once(self, exported, translator):
        stored = [
            (name, shape)
            for name, shape in tf.train.list_variables(str(exported / "variables" / "variables"))
            if name != "_CHECKPOINTABLE_OBJECT_GRAPH"
        ]
        assert sum(int(np.prod(shape)) for _, shape in stored) == translator.model.count_params()
        assert not [name for name, _ in stored if "optim" in name.lower() or "seed" in name.lower()]

    def test_operations_are_those_of_any_model_server(self, exported):
        found = operations(exported)
        assert found - ALLOWED == set()
        assert {"SentencepieceOp", "SentencepieceTokenizeOp"} <= found
        # TensorFlow searches chunks at the same time only if their loops read no variables.
        assert "While" not in found


class TestSettings:
    @pytest.mark.slow
    def test_samples_are_the_translators(self, tmp_path):
        """With one seed, in another process, as long as the texts are searched together."""
        translator = tiny_translator(search=Sampling(num_samples=3, seed=2**31 - 1))
        texts = [NORMAL, sentence(3), sentence(7)]
        expected = [[one.text for one in row] for row in translator.hypotheses(texts)]
        directory = export_saved_model(translator, tmp_path / "m")
        texts = [text.encode().hex() for text in texts]
        assert ask_process(CLIENT, directory, *texts)["translations"] == expected
        assert len({text for row in expected for text in row}) == 9

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "config",
        [{"position": "learned", "max_length": 12}, {"remat": True, "flash_attention": True}],
    )
    def test_models_of_other_kinds(self, config, tmp_path):
        """Learned positions bound sources and answers."""
        translator = Translator(tiny_model(**config), tiny_tokenizer(), search=GreedySearch())
        loaded = tf.saved_model.load(export_saved_model(translator, tmp_path / "m"))
        outputs = loaded.signatures["serving_default"](text=tf.constant([LONG, NORMAL]))
        found = [text.decode() for text in outputs["translation"].numpy()]
        assert found == translator.translate([LONG, NORMAL], long_texts="truncate")

    @pytest.mark.slow
    def test_subword_vocabulary_needs_no_tensorflow_text(self, tmp_path):
        tokenizer = SubwordTokenizer(["re@@", "d", "house", "a"])
        model = tiny_model(vocab_size=tokenizer.vocab_size)
        translator = Translator(model, tokenizer, search=GreedySearch())
        texts = ["a re@@ d house", "", "unknown \u96ea"]
        expected = translator.translate(texts)
        directory = export_saved_model(translator, tmp_path / "m")
        assert not [name for name in operations(directory) if name.startswith("Sentencepiece")]
        loaded = tf.saved_model.load(directory)
        outputs = loaded.signatures["serving_default"](text=tf.constant(texts))
        assert [text.decode() for text in outputs["translation"].numpy()] == expected

    @pytest.mark.slow
    def test_without_tensorflow_text_the_error_names_the_operation(self, exported):
        client = CLIENT.replace("import tensorflow_text", "")
        command = [sys.executable, "-c", client, exported]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode != 0
        assert "Op type not registered 'Sentencepiece" in done.stderr


class TestFiles:
    def test_failed_export_leaves_the_old_one(self, exported, translator, monkeypatch):
        before = sorted(exported.rglob("*"))

        def broken(*args, **kwargs):
            pathlib.Path(args[1]).mkdir(exist_ok=True)
            raise OSError("no space left on device")

        monkeypatch.setattr(tf.saved_model, "save", broken)
        with pytest.raises(OSError, match="no space"):
            export_saved_model(translator, exported)
        assert sorted(exported.rglob("*")) == before
        assert [path.name for path in exported.parent.iterdir()] == [exported.name]

    def test_complete_export_replaces_an_old_one(self, translator, tmp_path, monkeypatch):
        directory = tmp_path / "m"
        directory.mkdir()
        (directory / "saved_model.pb").write_bytes(b"old")
        (directory / "variables").mkdir()
        (directory / "variables" / "variables.index").write_text("old")
        # Left by exports that were killed.
        for name in (".writing-0123456789ab-m", ".replaced-0123456789ab-m"):
            (tmp_path / name).mkdir()
            os.utime(tmp_path / name, (1e9, 1e9))

        def quick(module, path, signatures):
            assert set(signatures) == {"serving_default", "n_best", "score", "attention", "limits"}
            pathlib.Path(path).mkdir(exist_ok=True)
            (pathlib.Path(path) / "saved_model.pb").write_bytes(b"new")

        monkeypatch.setattr(tf.saved_model, "save", quick)
        export_saved_model(translator, directory)
        assert {path.name for path in directory.iterdir()} == {"saved_model.pb", "assets.extra"}
        assert (directory / "saved_model.pb").read_bytes() == b"new"
        assert [path.name for path in tmp_path.iterdir()] == ["m"]
