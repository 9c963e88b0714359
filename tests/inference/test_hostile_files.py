"""Damaged and hostile files: whatever is in them, they load or are refused in one clear line."""

import copy
import json
import os
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
from keras_transformer.inference.model_directory import read_config, read_recipe, read_tokenizers
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import IN_SAVED_MODEL
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


@pytest.fixture
def copy_of(directories, tmp_path):
    return lambda name: shutil.copytree(directories / name, tmp_path / name)


@pytest.fixture
def translator(copy_of):
    """The directory of a translator that a test may damage."""
    return copy_of("translator")


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
def test_any_value_in_any_place_of_a_json_file_is_read_or_refused(copy_of, name):
    directory = copy_of(name)
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


def damage(path, number, longest=None):
    """Yields `number` times after the file was cut, and as often after one bit was flipped."""
    original, generator = path.read_bytes(), random.Random(1)
    for _ in range(number):
        path.write_bytes(original[: generator.randrange(len(original))])
        yield
        content = bytearray(original)
        content[generator.randrange(longest or len(content))] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        yield
    path.write_bytes(original)


@pytest.mark.parametrize("name", KINDS)
def test_cut_and_flipped_files_are_read_or_refused(copy_of, name):
    directory = copy_of(name)
    for path in sorted(path for path in directory.iterdir() if path.suffix != ".h5"):
        for _ in damage(path, 20):
            refusal(directory)


def test_cut_and_flipped_weights_are_loaded_or_refused(translator, served, directories):
    expected = Translator.load(directories / "translator")
    assert is_model(Translator.load(served), expected)
    variables = sorted((served.parents[1] / "variables").iterdir())
    files = [(translator, translator / "model.weights.h5", 6), *((served, x, 3) for x in variables)]
    for directory, path, number in files:
        for _ in damage(path, number, 2000 if path.suffix == ".h5" else None):
            try:
                Translator.load(directory)
            except UserError as error:
                assert "\n" not in str(error)
                assert path.name.partition(".")[0] in str(error)


def change(directory, place, value):
    """Changes a value of `config.json`; `place` is "model.d_model", for example."""
    path = directory / "config.json"
    keys = [int(key) if key.isdecimal() else key for key in place.split(".")]
    path.write_text(with_value(json.loads(path.read_text()), keys, json.dumps(value)))


TRANSLATORS = [
    ({"model.activation": "glu"}, "`activation`.*'glu'"),
    ({"model.num_encoder_layers": 1000}, "the model has"),
    ({"model.num_encoder_layers": 1001}, "num_encoder_layers=1001"),
    ({"model.vocab_size": 2**31}, "vocab_size"),
    ({"model.norm_epsilon": float("inf")}, "norm_epsilon=inf"),
    ({"extra_length": 2**31}, "`extra_length` must be at most 16,384"),
    ({"max_source_length": 10**6}, "max_source_length=1000000"),
    ({"shared_tokenizer": "false"}, "shared_tokenizer='false'"),
    ({"task": "cooking"}, "config.json.*task. must be one of .*'cooking'"),
    ({"search.name": ["beam"]}, r"name=\['beam'\]"),
    ({"search.length_penalty": 10**400}, "config.json"),
    ({"format": 2}, "config.json: .*format=2"),
    ({"search.beam_size": 10**9}, "config.json: .*from 1 to 4096. Received"),
    ({"model": None}, "config.json: the entry 'model' is missing"),
    ({"model.d_model": 33}, "config.json: .*d_model=33"),
    ({"model.color": "red"}, "config.json: .*no such setting"),
    ({"model.vocab_size": 321}, "tokenizer.*: the tokenizer has .* has 321"),
    ({"sentence_profile": {"longest": 1}}, "config.json"),
    # As many parameters as before, in other places.
    ({"model.key_dim": 6, "model.value_dim": 10}, "model.weights.h5"),
]  # fmt: skip
PARSERS = [
    ({"constrained": "false"}, "constrained='false'"),
    ({"linearization": {"verbs": True}}, "Linearization has no such setting.*verbs"),
    ({"extra_length": 2}, "at least 3"),
]


@pytest.mark.parametrize("name, changes, message", [
    *(("translator", *row) for row in TRANSLATORS), *(("parser", *row) for row in PARSERS),
])  # fmt: skip
def test_a_value_out_of_range_is_named(copy_of, name, changes, message):
    directory = copy_of(name)
    for place, value in changes.items():
        change(directory, place, value)
    with pytest.raises(UserError, match=message) as caught:
        {"translator": Translator, "parser": Parser}[name].load(directory)
    assert "\n" not in str(caught.value)


def listing(folder):
    return {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def two_models(tmp_path):
    """Two translators whose tokenizers have different files, and the directory of the first."""
    first, second = SubwordTokenizer(WORDS), SubwordTokenizer(WORDS[::-1])
    size = {"vocab_size": first.vocab_size}
    old = Translator(tiny_model(1, **size), first, recipe={})
    new = tiny_model(2, **size, target_vocab_size=first.vocab_size)
    new = Translator(new, first, second)
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

    monkeypatch.setattr(
        "keras_transformer.inference.model_directory.read_tokenizers", read_and_save
    )
    waiting = [new, old, new]
    assert is_model(Translator.load(directory), new)
    assert not waiting


@pytest.fixture
def served(directories, tmp_path):
    """The model directory of a SavedModel, with the weights as TensorFlow stores them."""
    tf = pytest.importorskip("tensorflow")
    translator, directory = Translator.load(directories / "translator"), tmp_path / "1"
    translator.write(directory / IN_SAVED_MODEL, translator.search, precision="float32")
    holder = tf.Module()
    holder.model_variables = [tf.Variable(weight) for weight in translator.model.get_weights()]
    tf.train.Checkpoint(holder).write(str(directory / "variables" / "variables"))
    return directory / IN_SAVED_MODEL


@pytest.mark.parametrize("name, value, size", [
    ("intermediate_dim", 10**6, "130,013,888"), ("d_model", 400_000, "1,920,122,400,128"),
    ("num_encoder_layers", 1000, "8,429,792"),
])  # fmt: skip
def test_sizes_are_compared_with_the_file_before_a_model_is_made(
    translator, tmp_path, served, monkeypatch, name, value, size
):
    monkeypatch.setattr(Transformer, "__init__", lambda *_, **__: pytest.fail("a model is made"))
    monkeypatch.setattr(keras.random, "normal", lambda *_, **__: pytest.fail("speed is measured"))
    for directory, file in (translator, "model.weights.h5"), (served, "variables/variables"):
        change(directory, f"model.{name}", value)
        for dtype in (None, "auto"):
            with pytest.raises(UserError, match=f"{file} does not fit.*the model has {size}"):
                Translator.load(directory, dtype=dtype)
    settings = TrainingSettings(preset="tiny", start_from=str(translator))
    with pytest.raises(UserError, match=f"the model has {size}"):
        train(tmp_path / "run", PairsCorpus([("a", "a")]), settings=settings)


def test_a_directory_reads_no_variables_but_those_of_its_saved_model(served, tmp_path):
    stranger = shutil.copytree(served, tmp_path / "1" / "models" / "stranger")
    with pytest.raises(UserError, match="stranger' has no weights of its own"):
        Translator.load(stranger)
    for value in (None, 5, "floatX", {"class_name": "DTypePolicy"}, ["float32"]):
        change(served, "precision", value)
        with pytest.raises(UserError, match="precision|dtype|floatX"):
            Translator.load(served)


def _huge(file):  # takes no room before it is written
    file.create_dataset("huge", (2**20, 2**20), "float32")


def _many(file):  # each is smaller than the file
    zeros = np.zeros(20_000, "float32")
    for number in range(9):
        file.create_dataset(f"zeros{number}", data=zeros, compression="gzip")


def _external(file):
    file.create_dataset("secret", (16,), "float32", external=[("/etc/passwd", 0, 64)])


def _virtual(file):
    import h5py

    layout = h5py.VirtualLayout((16,), "float32")
    layout[:] = h5py.VirtualSource("/etc/passwd", "data", (16,))
    file.create_virtual_dataset("secret", layout)


@pytest.mark.parametrize("add, message", [
    (_huge, "are larger than the file"), (_many, "are larger than the file"),
    (_external, "are in other files"), (_virtual, "are in other files"),
])  # fmt: skip
def test_a_weight_file_that_declares_more_than_it_holds_is_refused(translator, add, message):
    import h5py

    path = translator / "model.weights.h5"
    with h5py.File(path, "r+") as file:
        file["nothing"] = h5py.Empty("float32")  # An array without a shape is no weight.
    assert Translator.load(translator).model.count_params()
    with h5py.File(path, "r+") as file:
        add(file)
    mean = translator / "mean.weights.h5"
    for read in (Translator.load, lambda _: average_checkpoints([path], mean)):
        with pytest.raises(UserError, match=f"model.weights.h5.*{message}"):
            read(translator)


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
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_no_pipe_and_no_device_is_read(translator, name, make):
    """A pipe would be waited for, and a device read, without end."""
    path = translator / name
    path.unlink()
    make(path)
    with pytest.raises(UserError, match=name.partition(".")[0]) as caught:
        Translator.load(translator)
    assert "\n" not in str(caught.value)
    if name == "model.weights.h5":
        with pytest.raises(UserError, match=name):
            average_checkpoints([path], translator / "mean.weights.h5")


def test_files_larger_than_any_of_their_kind_are_refused(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(2**22 + 1)  # a sparse file, which takes no room
    with pytest.raises(UserError, match="config.json.*larger than 4,194,304 bytes"):
        read_config(tmp_path)
    for name in ("tokenizer.txt", "tokenizer.model"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(2**26 + 1)
        with pytest.raises(UserError, match=f"{name}' cannot be loaded: it is larger than"):
            load_tokenizer(tmp_path)
        (tmp_path / name).unlink()
