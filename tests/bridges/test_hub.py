"""Files of published models: read from a folder or the hub's cache, imported, or refused."""

import functools
import json
import os
import pickle
import warnings

import numpy as np
import pytest

from keras_transformer.bridges import load_opus_mt
from keras_transformer.cli import main
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator
from tests.bridges.published import PORTUGUESE, SOURCES, learn_files, save_arrays


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders of small published models, by kind."""

    @functools.cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind)
        learn_files(folder, ("<s>", PORTUGUESE, ">>pob<<") if kind == "tc-big" else ())
        save_arrays(folder)
        return folder

    return make


def texts_for(translator):
    code = f"{PORTUGUESE} " if translator.source_tokenizer.languages else ""
    return [code + text for text in (*SOURCES, "an unknown ☃ word", "dogs")]


def assert_same_translators(translator, expected):
    texts = texts_for(expected)
    for found, other in zip(translator.tokenizers, expected.tokenizers, strict=True):
        assert found.encode_batch(texts) == other.encode_batch(texts)
    weights = zip(translator.model.get_weights(), expected.model.get_weights(), strict=True)
    for found, other in weights:
        np.testing.assert_array_equal(found, other)
    assert translator.model.config == expected.model.config
    for name in ("origin", "search", "max_source_length", "extra_length"):
        assert getattr(translator, name) == getattr(expected, name), name


@pytest.fixture
def run(capfd):
    """Calls the command line in this process; returns its status and its errors."""

    def run_command(*arguments):
        status = main([str(argument) for argument in arguments])
        return status, capfd.readouterr().err

    return run_command


def test_the_command_writes_a_model_directory(published, run, tmp_path):
    folder, model = published("tc-big"), tmp_path / "model"
    status, errors = run("import", folder, "--output", model)
    assert status == 0, errors
    assert f"wrote {model}: {folder}, license not stated" in errors
    assert errors.endswith(f"target language: {PORTUGUESE}, >>pob<<\n")
    assert_same_translators(Translator.load(model), load_opus_mt(folder))


@pytest.mark.parametrize("kind", ["trained", "other", "imported"])
def test_the_command_replaces_its_own_model_alone(published, run, tmp_path, kind):
    folder, model = published("opus"), tmp_path / "model"
    translator = load_opus_mt(folder)
    if kind == "other":
        model.mkdir()
        (model / "thesis.txt").write_text("years of work")
    else:
        translator.origin = translator.origin if kind == "imported" else None
        translator.save(model)
    if kind == "trained":
        (model / "training.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    status, errors = run("import", folder, "--output", model)
    after = {path.name: path.read_bytes() for path in model.iterdir()}
    assert (status == 0) == (kind == "imported") and before == after, errors
    assert kind == "imported" or (errors.count("\n") == 1 and repr(str(model)) in errors)


def test_a_model_directory_keeps_all(published, tmp_path):
    folder = published("tc-big")
    (folder / "README.md").write_text("---\nlanguage: pt\nlicense: cc-by-4.0\n---\n# Model\n")
    translator = load_opus_mt(folder)
    assert translator.origin == {"name": str(folder), "license": "cc-by-4.0"}
    assert translator.search.beam_size == 4
    assert translator.search.length_normalization == "length"
    translator.save(tmp_path)
    assert_same_translators(Translator.load(tmp_path), translator)


def test_the_language_is_needed(published):
    translator = load_opus_mt(published("tc-big"))
    for text in ("a dog", ">>deu<< a dog"):
        with pytest.raises(UserError, match=f"target language: {PORTUGUESE}, >>pob<<. Received: "):
            translator.translate([text])


def test_a_name_on_the_hub_is_read_from_its_cache(published, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    folder = published("opus")
    revision = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "hub" / "models--Somebody--opus-mt-en-de"
    snapshot = root / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(revision)
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    translator = load_opus_mt("Somebody/opus-mt-en-de")
    assert translator.origin["name"] == "Somebody/opus-mt-en-de"
    with pytest.raises(UserError, match="'Somebody/other' cannot be downloaded"):
        load_opus_mt("Somebody/other")


class Executes:
    def __reduce__(self):
        return (open, ("executed", "w"))


def _change_json(name, **changes):
    def change(folder):
        values = json.loads((folder / name).read_text()) | changes
        text = json.dumps({key: value for key, value in values.items() if value is not None})
        (folder / name).write_text(text)

    return change


def _truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Executes()))


def _other_vocabulary(folder):
    vocabulary = json.loads((folder / "vocab.json").read_text())
    pad = vocabulary.pop("<pad>")
    text = json.dumps(vocabulary | {"more": pad, "<pad>": pad + 1})
    (folder / "vocab.json").write_text(text)
    _change_json("config.json", pad_token_id=pad + 1, decoder_start_token_id=pad + 1)(folder)


def _replace_by(name, kind):
    """Puts something in the place of a file that a reader would wait for, or never finish."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(folder / name)
        elif kind == "endless":
            (folder / name).symlink_to("/dev/zero")
        elif kind == "huge":
            with open(folder / name, "wb") as file:
                file.truncate(2**40)
        else:
            (folder / name).mkdir()

    return change


def _change_tensor(change):
    def change_file(folder):
        torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
        from safetensors.torch import load_file

        tensors = load_file(folder / "model.safetensors")
        with warnings.catch_warnings(action="ignore"):  # of torch, about rare kinds
            tensors["model.shared.weight"] = change(torch, tensors["model.shared.weight"])
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")

    return change_file


_TENSORS = {
    "sparse": lambda torch, tensor: tensor.to_sparse(),
    "quantized": lambda torch, tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
    "repeated": lambda torch, tensor: torch.zeros(()).expand(10**9, 32),
}
_NOT_PLAIN = "pytorch_model.bin' cannot be read: .*'model.shared.weight' is not a dense tensor"
_GENERATION = {
    "do_sample": True, "min_length": 2, "repetition_penalty": 1.2, "forced_bos_token_id": 5,
    "bad_words_ids": [[5]], "decoder_start_token_id": 5,
}  # fmt: skip

WRONG = {
    **{
        f"no {name}": (lambda folder, name=name: (folder / name).unlink(), message)
        for name, message in {
            "config.json": "config.json' is missing",
            "source.spm": "not those with BPE alone. Received: .*without source.spm",
            "model.safetensors": "model.safetensors or pytorch_model.bin",
        }.items()
    },
    "truncated": (_truncate, "model.safetensors' cannot be read: it is damaged"),
    "executes": (_pickle, "pytorch_model.bin' cannot be read: .*more than tensors"),
    "vocabulary": (_other_vocabulary, "'model.shared.weight' must have the shape .*Received: "),
    "ids twice": (_change_json("vocab.json", **{"</s>": 1}), "must give the ids from 0 to"),
    "no padding": (_change_json("vocab.json", **{"<pad>": None}), "lacks the piece '<pad>'"),
    "architecture": (_change_json("config.json", model_type="t5"), "model_type='t5'"),
    "pre-norm": (_change_json("config.json", normalize_before=True), "normalize_before=True"),
    "activation": (_change_json("config.json", activation_function="x"), "activation_function='x'"),
    "unscaled": (_change_json("config.json", scale_embedding=None), "scale_embedding=False"),
    "heads": (_change_json("config.json", decoder_attention_heads=2), r"attention_heads=\[4, 2\]"),
    "layers": (_change_json("config.json", encoder_layers=3), "has .* numbers, fewer than"),
    "huge": (_change_json("config.json", d_model=2**30), "must have the shape"),
    "end": (_change_json("config.json", eos_token_id=5), "eos_token_id=5"),
    "beams": (_change_json("generation_config.json", num_beams=10**9), "beam_size="),
    "a pipe": (_replace_by("config.json", "pipe"), "a pipe or a device"),
    "an endless file": (_replace_by("vocab.json", "endless"), "a pipe or a device|cannot be read"),
    "a huge file": (_replace_by("generation_config.json", "huge"), "larger than"),
    "a folder": (_replace_by("source.spm", "folder"), "without source.spm"),
    "huge weights": (_replace_by("model.safetensors", "huge"), "it is damaged"),
    **{name: (_change_tensor(change), _NOT_PLAIN) for name, change in _TENSORS.items()},
    "not finite": (_change_tensor(lambda torch, t: t / 0), "pytorch_model.bin'.*not finite"),
    **{
        name: (_change_json("generation_config.json", **{name: value}), f"{name}=")
        for name, value in _GENERATION.items()
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def right(published):
    folder = published("opus")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_named_in_one_line(case, right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in right.items():
        (folder / name).write_bytes(content)
    if case == "executes":
        pytest.importorskip("torch")
    change, message = WRONG[case]
    change(folder)
    with pytest.raises(UserError, match=message) as raised:
        load_opus_mt(folder)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("source, message", [
    ("nothing", "neither a folder nor the name"), (__file__, "is a file"),
])  # fmt: skip
def test_no_model_is_named(source, message):
    with pytest.raises(UserError, match=message):
        load_opus_mt(source)
