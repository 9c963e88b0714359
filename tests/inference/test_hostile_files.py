"""Damaged and hostile files: whatever is in them, they load or are refused in one clear line."""

import copy
import json
import os
import pathlib
import random
import shutil

import keras
import numpy as np
import pytest

from keras_transformer.data import (
    PairsCorpus,
    PreparedCorpus,
    SubwordTokenizer,
    load_tokenizer,
    prepare_corpus,
)
from keras_transformer.decoding import BeamSearch, MinimumLength, SuppressTokens
from keras_transformer.errors import UserError
from keras_transformer.files import read_json
from keras_transformer.inference.model_directory import (
    IN_SAVED_MODEL,
    read_config,
    read_model,
    read_recipe,
    read_tokenizers,
)
from keras_transformer.inference.translator import Translator
from keras_transformer.models import TrainingRecipe, Transformer
from keras_transformer.parsing.parser import Parser
from keras_transformer.training import TrainingSettings, average_checkpoints, train
from tests.tiny_parser import tiny_parser
from tests.tiny_translator import WORDS, tiny_model

# Texts of JSON values; every value of every file becomes each of them in turn.
VALUES = [
    *("null", "true", "0", "-1", "7", "0.5", "1e308", "1e999", "NaN", "2147483648", "1e12"),
    *('""', '"false"', '"relu"', '"\\ud800"', '"a\\nb"', '"../../x"', "[]", "[1]", '["beam"]'),
    *("{}", '{"name": "greedy"}', "9" * 400, "9" * 5000, "[" * 100_000, "[" * 300 + "]" * 300),
    '{"a":' * 100_000,
]
KINDS = ["translator", "training"]
KINDS += [pytest.param(name, marks=pytest.mark.slow) for name in ("parser", "prepared")]
DATA = {"pairs": 18, "train_recipe": TrainingRecipe().to_dict()}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A translator, a parser and a corpus, each in a directory of its own."""
    folder = tmp_path_factory.mktemp("good")
    words = SubwordTokenizer(WORDS)
    search = BeamSearch(3, constraints=[MinimumLength(2), SuppressTokens([1])])
    model = tiny_model(vocab_size=words.vocab_size)
    Translator(model, words, search=search, recipe={}).save(folder / "translator")
    tiny_parser(source=words, recipe={}).save(folder / "parser")
    pairs = [("a red house", "door"), ("a", "the dog")] * 9
    prepare_corpus(folder / "prepared", PairsCorpus(pairs), PairsCorpus(pairs[:1]), words)
    TrainingSettings(preset="tiny").save(folder / "training", DATA)
    return folder


def read(directory):
    """Reads all that a directory holds, short of making a model."""
    if directory.name == "prepared":
        corpus = PreparedCorpus.load(directory)
        for split in corpus.splits:
            assert len(corpus.read(split)) == corpus.splits[split].pairs
        assert all(isinstance(text, str) for pair in corpus.valid_text or () for text in pair)
    elif directory.name == "training":
        TrainingSettings(preset="tiny").check_resumes(directory, DATA)
    else:
        config = read_config(directory)
        read_tokenizers(directory, config)
        read_recipe(directory)


def places(value, place=()):
    """Yields where every value is that lies in a JSON value, and itself."""
    yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*place, key))


def with_value(content, place, text):
    """Returns a JSON text whose value at a place is `text`."""
    if not place:
        return text
    content = copy.deepcopy(content)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "@here@"
    return json.dumps(content).replace('"@here@"', text)


def refusal(directory):
    """Returns the line that a directory is refused with, or None; other errors escape."""
    try:
        read(directory)
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1500
        return str(error)
    return None


@pytest.mark.parametrize("name", KINDS)
def test_any_value_in_any_place_of_a_json_file_is_read_or_refused(directories, tmp_path, name):
    directory = shutil.copytree(directories / name, tmp_path / name)
    assert refusal(directory) is None
    refused = 0
    for path in sorted(directory.glob("*.json")):
        original = path.read_text()
        content = json.loads(original)
        for place in places(content):
            for text in VALUES:
                path.write_text(with_value(content, place, text))
                refused += refusal(directory) is not None
        path.write_text(original)
    assert refused > 300


@pytest.mark.parametrize("name", KINDS)
def test_cut_and_flipped_files_are_read_or_refused(directories, tmp_path, name):
    directory = shutil.copytree(directories / name, tmp_path / name)
    generator = random.Random(1)
    for path in sorted(path for path in directory.iterdir() if path.suffix != ".h5"):
        original = path.read_bytes()
        for _ in range(20):
            path.write_bytes(original[: generator.randrange(len(original))])
            refusal(directory)
            content = bytearray(original)
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
            path.write_bytes(content)
            refusal(directory)
        path.write_bytes(original)


def test_cut_and_flipped_weights_are_loaded_or_refused(directories, tmp_path):
    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    config, path = read_config(directory), directory / "model.weights.h5"
    original = path.read_bytes()
    generator = random.Random(1)
    for number in range(12):
        content = bytearray(original)
        content[generator.randrange(2000)] ^= 1 << generator.randrange(8)
        path.write_bytes(content if number % 2 else original[: len(original) * number // 12])
        try:
            read_model(directory, config)
        except UserError as error:
            assert "\n" not in str(error) and "model.weights.h5" in str(error)


def change(directory, place, value):
    path = directory / "config.json"
    content = json.loads(path.read_text())
    path.write_text(with_value(content, place, json.dumps(value)))


@pytest.mark.parametrize(
    "name, place, value, message",
    [
        ("translator", ("model", "activation"), "foo", "`activation`.*'foo'"),
        ("translator", ("model", "activation"), "glu", "`activation`.*'glu'"),
        ("translator", ("model", "intermediate_dim"), 10**6, "the model has"),
        ("translator", ("model", "num_encoder_layers"), 1000, "the model has"),
        ("translator", ("model", "num_encoder_layers"), 1001, "num_encoder_layers=1001"),
        ("translator", ("model", "num_decoder_layers"), 2**31 - 1, "num_decoder_layers=2147483647"),
        ("translator", ("model", "sliding_window"), 2**31 - 1, "sliding_window=2147483647"),
        ("translator", ("model", "vocab_size"), 2**31, "vocab_size"),
        ("translator", ("model", "norm_epsilon"), float("inf"), "norm_epsilon=inf"),
        ("translator", ("extra_length",), 2**31, "`extra_length` must be at most 16,384"),
        ("translator", ("extra_length",), 10**6, "extra_length=1000000"),
        ("translator", ("max_source_length",), 10**6, "max_source_length=1000000"),
        ("translator", ("shared_tokenizer",), "false", "shared_tokenizer='false'"),
        ("translator", ("task",), ["parsing"], r"task=\['parsing'\]"),
        ("translator", ("search", "name"), ["beam"], r"name=\['beam'\]"),
        ("translator", ("search", "constraints", 0, "name"), {}, "name={}"),
        ("translator", ("search", "length_penalty"), 10**400, "config.json"),
        ("parser", ("constrained",), "false", "constrained='false'"),
        ("translator", ("format",), 2, "config.json: .*format=2"),
        ("translator", ("search", "beam_size"), 0, "config.json: .*beam_size=0"),
        ("translator", ("search", "name"), "best", "config.json: .*name='best'"),
        ("translator", ("search",), 5, "config.json"),
        ("translator", ("model",), None, "config.json: the entry 'model' is missing"),
        ("translator", ("extra_length",), -1, "config.json: .*extra_length=-1"),
        ("translator", ("model", "d_model"), 33, "config.json: .*d_model=33"),
        ("translator", ("model", "color"), "red", "config.json: .*no such setting"),
        ("translator", ("model", "vocab_size"), "many", "config.json: .*vocab_size='many'"),
        ("translator", ("model", "vocab_size"), 321, "tokenizer.*: the tokenizer has .* has 321"),
        ("translator", ("model", "d_model"), 64, "model.weights.h5"),
        ("translator", ("model", "num_encoder_layers"), 2, "model.weights.h5"),
        ("translator", ("model", "norm"), "pre", "model.weights.h5"),
    ],
)
def test_a_value_out_of_range_is_named(directories, tmp_path, name, place, value, message):
    directory = shutil.copytree(directories / name, tmp_path / name)
    change(directory, place, value)
    with pytest.raises(UserError, match=message) as caught:
        {"translator": Translator, "parser": Parser}[name].load(directory)
    assert "\n" not in str(caught.value)


def test_as_many_parameters_in_other_places_are_named(directories, tmp_path):
    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    for name, dim in (("key_dim", 6), ("value_dim", 10)):
        change(directory, ("model", name), dim)
    with pytest.raises(UserError, match="model.weights.h5"):
        Translator.load(directory)


def listing(folder):
    return sorted(
        (path, path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")
    )


def test_reading_a_model_changes_nothing_where_a_link_points(directories, tmp_path):
    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    victim = shutil.copytree(directories / "parser", tmp_path / "victim")
    (victim / "thesis.txt").write_text("years of work")
    (victim / "config.json.obsolete").touch()
    (directory / ".replacing").symlink_to("../victim")
    before = listing(tmp_path)
    Translator.load(directory)
    assert listing(tmp_path) == before


@pytest.fixture
def two_models(tmp_path):
    """Two translators whose tokenizers have different files, and the directory of the first."""
    first, second = SubwordTokenizer(WORDS), SubwordTokenizer(WORDS[::-1])
    old = Translator(tiny_model(1, vocab_size=first.vocab_size), first, recipe={})
    new = Translator(
        tiny_model(2, vocab_size=first.vocab_size, target_vocab_size=first.vocab_size),
        *(first, second),
    )
    return old, new, old.save(tmp_path / "model")


def is_model(found, expected):
    weights = zip(found.model.get_weights(), expected.model.get_weights(), strict=True)
    same_pieces = found.target_tokenizer.pieces([9]) == expected.target_tokenizer.pieces([9])
    return same_pieces and all(np.array_equal(*pair) for pair in weights)


@pytest.mark.parametrize("num_moved", [0, 2])
def test_a_save_that_was_killed_is_read_without_finishing_it(two_models, monkeypatch, num_moved):
    old, new, directory = two_models
    with monkeypatch.context() as patch:
        patch.setattr("keras_transformer.files.finish_replacing", lambda directory: None)
        new.save(directory)
    for path in sorted((directory / ".replacing").iterdir())[:num_moved]:
        path.rename(directory / path.name)
    before = listing(directory)
    found = Translator.load(directory)
    assert is_model(found, new) and found.recipe is None
    assert listing(directory) == before
    old.save(directory)
    assert is_model(Translator.load(directory), old)
    names = ["config.json", "model.weights.h5", "recipe.json", "tokenizer.txt"]
    assert sorted(path.name for path in directory.iterdir()) == names


def test_a_model_that_is_saved_while_it_is_loaded_is_loaded_as_a_whole(two_models, monkeypatch):
    old, new, directory = two_models

    def read_and_save(*arguments):
        found = read_tokenizers(*arguments)
        if waiting:
            waiting.pop().save(directory)
        return found

    monkeypatch.setattr("keras_transformer.inference.pipeline.read_tokenizers", read_and_save)
    waiting = [new, old, new]
    assert is_model(Translator.load(directory), new)
    assert not waiting


def save_as_in_a_saved_model(translator, root):
    """Writes the model directory of a SavedModel, and the weights as TensorFlow stores them."""
    import tensorflow as tf

    directory = root / IN_SAVED_MODEL
    translator.write(directory, translator.search, precision="float32")
    holder = tf.Module()
    holder.model_variables = [tf.Variable(weight) for weight in translator.model.get_weights()]
    tf.train.Checkpoint(holder).write(str(root / "variables" / "variables"))
    return directory


@pytest.fixture
def served(directories, tmp_path):
    pytest.importorskip("tensorflow")
    return save_as_in_a_saved_model(Translator.load(directories / "translator"), tmp_path / "1")


@pytest.fixture
def no_model_is_made(monkeypatch):
    monkeypatch.setattr(Transformer, "__init__", lambda *_, **__: pytest.fail("a model is made"))


@pytest.mark.parametrize(
    "name, value, size",
    [
        ("intermediate_dim", 10**6, "130,013,888"),
        ("d_model", 400_000, "1,920,122,400,128"),
        ("num_encoder_layers", 1000, "8,429,792"),
    ],
)
@pytest.mark.parametrize("precision", [None, "auto"])
def test_sizes_are_compared_with_the_file_before_a_model_is_made(
    directories, tmp_path, served, no_model_is_made, monkeypatch, name, value, size, precision
):
    monkeypatch.setattr(keras.random, "normal", lambda *_, **__: pytest.fail("speed is measured"))
    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    for one, file in ((directory, "model.weights.h5"), (served, "variables/variables")):
        change(one, ("model", name), value)
        with pytest.raises(UserError, match=f"{file} does not fit.*the model has {size}"):
            Translator.load(one, dtype=precision)


def test_training_compares_the_sizes_of_the_model_to_start_from(
    directories, tmp_path, no_model_is_made
):
    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    change(directory, ("model", "intermediate_dim"), 10**6)
    settings = TrainingSettings(preset="tiny", start_from=str(directory))
    with pytest.raises(UserError, match="the model has 130,013,888"):
        train(tmp_path / "run", PairsCorpus([("a", "a")]), settings=settings)


def test_the_weights_of_a_saved_model_are_loaded_or_refused(directories, served):
    expected = Translator.load(directories / "translator")
    assert is_model(Translator.load(served), expected)
    generator = random.Random(1)
    for path in sorted((served.parents[1] / "variables").iterdir()):
        original = path.read_bytes()
        for number in range(6):
            content = bytearray(original)
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
            path.write_bytes(content if number % 2 else original[: len(original) * number // 6])
            try:
                Translator.load(served)
            except UserError as error:
                assert "\n" not in str(error) and "variables" in str(error)
        path.write_bytes(original)


def test_a_precision_of_no_kind_is_refused(served):
    for value in (None, 5, "floatX", {"class_name": "DTypePolicy"}, ["float32"]):
        change(served, ("precision",), value)
        with pytest.raises(UserError, match="precision|dtype|floatX"):
            Translator.load(served)


def test_a_directory_reads_no_variables_but_those_of_its_saved_model(served, tmp_path):
    stranger = shutil.copytree(served, tmp_path / "1" / "models" / "stranger")
    with pytest.raises(UserError, match="stranger' has no weights of its own"):
        Translator.load(stranger)


@pytest.mark.parametrize("kind", ["one", "many", "external", "virtual"])
def test_a_weight_file_that_declares_more_than_it_holds_is_refused(directories, tmp_path, kind):
    import h5py

    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    path = directory / "model.weights.h5"
    with h5py.File(path, "r+") as file:
        if kind == "one":  # takes no room before it is written
            file.create_dataset("huge", (2**20, 2**20), "float32")
        elif kind == "many":  # each is smaller than the file
            for number in range(9):
                zeros = np.zeros(path.stat().st_size // 5, "float32")
                file.create_dataset(f"zeros{number}", data=zeros, compression="gzip")
        elif kind == "external":
            external = [(str(tmp_path / "secret"), 0, 64)]
            file.create_dataset("secret", (16,), "float32", external=external)
        else:
            layout = h5py.VirtualLayout((16,), "float32")
            layout[:] = h5py.VirtualSource(str(tmp_path / "secret"), "data", (16,))
            file.create_virtual_dataset("secret", layout)
    message = "are larger than the file" if kind in ("one", "many") else "are in other files"
    for read in (Translator.load, lambda _: average_checkpoints([path], tmp_path / "a.weights.h5")):
        with pytest.raises(UserError, match=f"model.weights.h5.*{message}"):
            read(directory)


def test_an_array_without_a_shape_is_no_weight(directories, tmp_path):
    import h5py

    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    with h5py.File(directory / "model.weights.h5", "r+") as file:
        file["nothing"] = h5py.Empty("float32")
    assert Translator.load(directory).model.count_params()


def test_weights_that_are_not_finite_are_refused(directories, tmp_path):
    translator = Translator.load(directories / "translator")
    weight = translator.model.encoder.blocks[0].feed_forward.inner_dense.bias
    for value in (np.nan, np.inf):
        values = np.zeros(weight.shape)
        values[3] = value
        weight.assign(values)
        path = translator.save(tmp_path / "model") / "model.weights.h5"
        with pytest.raises(UserError, match="model.weights.h5.*inner/bias.*not finite float32"):
            Translator.load(path.parent)
        with pytest.raises(UserError, match="not finite.*model.weights.h5"):
            average_checkpoints([path], tmp_path / "mean.weights.h5")
        assert not (tmp_path / "mean.weights.h5").exists()


@pytest.mark.parametrize(
    "name", ["config.json", "recipe.json", "tokenizer.txt", "model.weights.h5"]
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_no_pipe_and_no_device_is_read(directories, tmp_path, name, kind):
    """A pipe would be waited for, and a device read, without end."""
    directory = shutil.copytree(directories / "translator", tmp_path / "translator")
    path = directory / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=name.partition(".")[0]) as caught:
        Translator.load(directory)
    assert "\n" not in str(caught.value)
    if name == "model.weights.h5":
        with pytest.raises(UserError, match=name):
            average_checkpoints([path], tmp_path / "mean.weights.h5")


def test_the_text_of_a_prepared_corpus_is_no_pipe(directories, tmp_path):
    corpus = PreparedCorpus.load(shutil.copytree(directories / "prepared", tmp_path / "prepared"))
    (corpus.directory / "valid.jsonl").unlink()
    os.mkfifo(corpus.directory / "valid.jsonl")
    with pytest.raises(UserError, match="valid.jsonl' is missing or damaged"):
        corpus.valid_text  # noqa: B018


def test_files_larger_than_any_of_their_kind_are_refused(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(2**22 + 1)  # a sparse file, which takes no room
    with pytest.raises(UserError, match="config.json.*larger than 4,194,304 bytes"):
        read_config(tmp_path)
    for name in ("tokenizer.txt", "tokenizer.model"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(2**26 + 1)
        with pytest.raises(UserError, match=f"{name}' is larger than a vocabulary"):
            load_tokenizer(tmp_path)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000, "[]", "{", "", '{"a": \x00}'])
def test_what_is_no_json_object_is_one_line(tmp_path, content):
    path = pathlib.Path(tmp_path, "file.json")
    path.write_text(content)
    with pytest.raises(UserError, match="file.json' is damaged") as caught:
        read_json(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
