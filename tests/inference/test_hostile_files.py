"""Damaged and hostile files: whatever is in them, they load or are refused in one clear line."""

import copy
import json
import random
import shutil

import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import BeamSearch, MinimumLength, SuppressTokens
from keras_transformer.errors import UserError
from keras_transformer.inference.model_directory import read_config, read_recipe, read_tokenizers
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import IN_SAVED_MODEL
from keras_transformer.models import TrainingRecipe, Transformer
from keras_transformer.training import TrainingSettings, average_checkpoints
from tests.tiny_translator import WORDS, tiny_model

# Texts of JSON values; every value of every file becomes each of them in turn.
VALUES = [
    *("null", "true", "0", "-1", "0.5", "1e999", "NaN", "2147483648", '""', '"relu"', '"\\ud800"'),
    *('"a\\nb"', "[]", "[1]", '["beam"]', "{}", '{"name": "greedy"}', "9" * 5000),
    *("[" * 300 + "]" * 300, "[" * 10_000),
]
DATA = {"pairs": 18, "train_recipe": TrainingRecipe().to_dict()}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A translator and the settings of a training, each in a directory of its own."""
    folder = tmp_path_factory.mktemp("good")
    words = SubwordTokenizer(WORDS)
    search = BeamSearch(3, constraints=[MinimumLength(2), SuppressTokens([1])])
    model = tiny_model(vocab_size=words.vocab_size)
    Translator(model, words, search=search, recipe={}).save(folder / "translator")
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
    if directory.name == "training":
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


@pytest.mark.parametrize("name", ["translator", "training"])
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


def test_cut_and_flipped_weights_are_loaded_or_refused(translator, served, directories):
    models = [Translator.load(path).model for path in (served, directories / "translator")]
    for pair in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(*pair)
    variables = sorted((served.parents[1] / "variables").iterdir())
    files = [(translator, translator / "model.weights.h5", 6), *((served, x, 3) for x in variables)]
    for directory, path, number in files:
        for _ in damage(path, number, 2000 if path.suffix == ".h5" else None):
            try:
                Translator.load(directory)
            except UserError as error:
                assert "\n" not in str(error)
                assert path.name.partition(".")[0] in str(error)


@pytest.mark.parametrize("place, value, message", [
    ("model.num_encoder_layers", 1000, "h5 does not fit .*the model has 8,429,792"),
    ("task", "cooking", "config.json.*task. must be one of .*'cooking'"),
    ("search.beam_size", 10**9, "config.json: .*from 1 to 4096. Received"),
    ("format", 2, "config.json: .*format=2"),
    ("model.vocab_size", 321, "tokenizer.*: the tokenizer has .* has 321"),
    ("model.color", "red", "config.json: .*no such setting"),
])  # fmt: skip
def test_a_value_out_of_range_is_named_before_a_model_is_made(
    translator, place, value, message, monkeypatch
):
    monkeypatch.setattr(Transformer, "__init__", lambda *_, **__: pytest.fail("a model is made"))
    path = translator / "config.json"
    path.write_text(with_value(json.loads(path.read_text()), place.split("."), json.dumps(value)))
    with pytest.raises(UserError, match=message) as caught:
        Translator.load(translator)
    assert "\n" not in str(caught.value)


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


def test_a_directory_reads_no_variables_but_those_of_its_saved_model(served, tmp_path):
    stranger = shutil.copytree(served, tmp_path / "1" / "models" / "stranger")
    with pytest.raises(UserError, match="stranger' has no weights of its own"):
        Translator.load(stranger)


def _huge(file):  # takes no room before it is written
    file.create_dataset("huge", (2**20, 2**20), "float32")


def _external(file):
    file.create_dataset("secret", (16,), "float32", external=[("/etc/passwd", 0, 64)])


def _not_finite(file):
    names = []
    file.visit(names.append)
    bias = next(name for name in names if name.endswith("inner_dense/vars/1"))
    file[bias][3] = np.nan


@pytest.mark.parametrize("change, message", [
    (_huge, "are larger than the file"), (_not_finite, "not finite"),
    (_external, "are in other files"),
])  # fmt: skip
def test_a_weight_file_of_impossible_values_is_refused(translator, change, message):
    import h5py

    path = translator / "model.weights.h5"
    with h5py.File(path, "r+") as file:
        change(file)
    mean = translator / "mean.weights.h5"
    for read in (Translator.load, lambda _: average_checkpoints([path], mean)):
        with pytest.raises(UserError, match="model.weights.h5") as caught:
            read(translator)
        assert message in str(caught.value)
    assert not mean.exists()
