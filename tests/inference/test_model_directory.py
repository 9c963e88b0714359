"""Model directories: what was saved is loaded, one or several, or refused in one clear line."""

import logging

import keras
import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import GreedySearch, MinimumLength, Sampling
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator
from keras_transformer.models import TrainingRecipe, TransformerConfig, processor
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

TEXTS = [sentence(1 + seed % 7, seed) for seed in range(6)]
CONFIG = TransformerConfig(vocab_size=100)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Models of different weights and layers, with settings of their own."""
    folder = tmp_path_factory.mktemp("models")
    settings = {"search": GreedySearch(), "extra_length": 4, "recipe": {"warmup_steps": 7}}
    first = tiny_translator(1, **settings)
    second = Translator(tiny_model(2, num_decoder_layers=2), tiny_tokenizer())
    return [first.save(folder / "first"), second.save(folder / "second")]


def test_several_directories_are_an_ensemble_with_the_settings_of_the_first(directories):
    found = Translator.load(directories)
    assert (found.search, found.extra_length, found.recipe) == (GreedySearch(), 4, None)
    models = [tiny_model(1), tiny_model(2, num_decoder_layers=2)]
    for model, expected in zip(found.model.models, models, strict=True):
        for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, other)


def test_settings_tokenizers_and_recipe_are_kept_in_place_of_those_of_before(tmp_path):
    tiny_translator(recipe=TrainingRecipe()).save(tmp_path)
    (tmp_path / "history.csv").write_text("kept")
    subwords = SubwordTokenizer(["a", "b", "c"])
    model = tiny_model(target_vocab_size=subwords.vocab_size)
    search = Sampling(top_k=3, constraints=[MinimumLength(4)])
    settings = {"search": search, "max_source_length": 99, "origin": {"name": "x"}}
    Translator(model, tiny_tokenizer(), subwords, **settings).save(tmp_path)
    loaded = Translator.load(tmp_path)
    found = {name: getattr(loaded, name) for name in settings}
    assert found == settings and loaded.recipe is None
    assert loaded.source_tokenizer.encode_batch(TEXTS) == tiny_tokenizer().encode_batch(TEXTS)
    assert loaded.target_tokenizer.encode("c a") == subwords.encode("c a")
    names = ["config.json", "history.csv", "model.weights.h5"]
    names += ["source_tokenizer.model", "target_tokenizer.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    loaded.recipe = TrainingRecipe(warmup_steps=7)
    assert Translator.load(loaded.save(tmp_path)).recipe == TrainingRecipe(warmup_steps=7)


@pytest.mark.parametrize("name", ["tokenizer.txt", "recipe.json"])
def test_a_file_that_is_no_part_of_a_model_is_never_deleted(tmp_path, name):
    (tmp_path / name).write_text("years of work")
    with pytest.raises(UserError, match=name):
        tiny_translator().save(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["years of work"]


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantized_model_is_not_written_and_replaces_nothing(directories):
    translator = Translator.load(directories[0])
    translator.model.quantize("int8")
    with pytest.raises(UserError, match="cannot hold a quantized model"):
        translator.save(directories[0])
    assert Translator.load(directories[0]).extra_length == 4


def test_what_is_no_model_directory_is_named(directories, tmp_path):
    with pytest.raises(ValueError, match="no model directory to load"):
        Translator.load([])
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(UserError, match="config.json is missing. A training writes it at its end"):
        Translator.load([*directories, tmp_path])


def save_subwords(directory, *vocabularies):
    names = "vocab_size", "target_vocab_size"
    sizes = {name: len(pieces) + 4 for name, pieces in zip(names, vocabularies, strict=False)}
    return Translator(tiny_model(**sizes), *map(SubwordTokenizer, vocabularies)).save(directory)


@pytest.mark.parametrize("first, other, differ", [
    (["ab"], ["abc"], "source vocabularies, of 6 and 7 pieces, differ"),
    (["ab", "xy"], ["ab", "xz"], "target vocabularies, of 6 and 6 pieces, differ"),
])  # fmt: skip
def test_other_vocabularies_are_named_with_their_directories(tmp_path, first, other, differ):
    paths = [save_subwords(tmp_path / "one", *first), save_subwords(tmp_path / "two", *other)]
    with pytest.raises(UserError, match=f"one' and '.*two', whose {differ}"):
        Translator.load(paths)


@pytest.mark.parametrize("cpu, variables, gpu, fast", [
    ("GenuineIntel avx512_bf16 amx_bf16", {}, None, ["tensorflow", "torch"]),
    ("GenuineIntel avx512_bf16 amx_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, None, []),
    ("GenuineIntel avx512_bf16 amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "0"}, None, ["torch"]),
    ("GenuineIntel avx512_bf16", {}, None, []),
    ("AuthenticAMD avx512_bf16", {}, None, ["tensorflow", "torch"]),
    ("AuthenticAMD avx2", {}, None, []),
    ("AuthenticAMD avx2", {}, (8, 0), ["tensorflow", "torch", "jax"]),
    ("GenuineIntel avx512_bf16 amx_bf16", {}, (7, 5), []),
])  # fmt: skip
def test_auto_is_the_faster_precision(
    directories, cpu, variables, gpu, fast, monkeypatch, caplog, request
):
    chosen = "bfloat16" if keras.backend.backend() in fast else "float32"
    assert (processor._gpu_capability() or (0, 0)) >= (0, 0)  # on this backend
    monkeypatch.setattr(processor, "_processor", lambda: cpu)
    monkeypatch.setattr(processor, "_gpu_capability", lambda: gpu)
    for name in ("ONEDNN_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    processor.has_amx.cache_clear()
    request.addfinalizer(processor.has_amx.cache_clear)
    caplog.set_level(logging.INFO, "keras_transformer")
    assert Translator.load(directories[0], dtype="auto").model.dtype_policy.name == chosen
    assert f"Computing in {chosen}." in caplog.text


def test_the_kind_of_device_is_that_of_the_backend(monkeypatch):
    if keras.backend.backend() == "jax":
        monkeypatch.setattr("jax.default_backend", lambda: "tpu")
        assert processor.device_kind() == "TPU"
    for capability, kind in ((None, "CPU"), ((9, 0), "GPU")):
        monkeypatch.setattr(processor, "_gpu_capability", lambda found=capability: found)
        assert keras.backend.backend() == "jax" or processor.device_kind() == kind
