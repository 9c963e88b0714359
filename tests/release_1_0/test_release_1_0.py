"""Files of version 1.0 load, answer as they did, and go on being trained."""

import json
import re
import tarfile

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import Parser, Translator
from keras_transformer.evaluation import attention_weights
from keras_transformer.layouts import IN_SAVED_MODEL
from keras_transformer.models.ensemble import copy_of
from keras_transformer.parsing import TreebankCorpus, write_trees
from keras_transformer.training import TrainingSettings, train
from tests.closeness import assert_close
from tests.release_0_1 import test_release_0_1
from tests.release_0_1.make import ANSWERS, TEXTS, parser_answers
from tests.release_0_1.test_release_0_1 import assert_same
from tests.release_1_0 import make

tensorflow_only = pytest.mark.tensorflow_only("TensorFlow wrote and reads them")
MODELS = {"transformer": make.make_transformer, "composed": make.make_composed_model}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release_1_0")
    with tarfile.open(make.ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def answers(files):
    return json.loads((files / "answers.json").read_text())


@pytest.fixture(scope="module")
def arrays(files):
    with np.load(files / "answers.npz") as file:
        return dict(file)


def values(weights):
    return [ops.convert_to_numpy(ops.cast(weight, "float32")) for weight in weights]


def assert_same_weights(model, expected, is_exact=True):
    """Compares weights whatever their names and order are: no two are alike."""
    weights = values(model.weights)
    assert len(weights) == len(expected)
    for name, value in expected.items():
        # A softmax ignores what a bias adds to all keys: its gradient is rounding, and Adam
        # divides rounding by its size.
        if name.endswith("key_bias"):
            continue
        same = [one for one in weights if one.shape == value.shape]
        error = min((np.abs(one - value).max() for one in same), default=np.inf)
        assert_close(error, 0.0, scale=0.0 if is_exact else 1.0, err_msg=name)


@pytest.mark.parametrize("name", test_release_0_1.ANSWERS)
def test_a_translator(files, answers, name):
    translator = Translator.load(files / "translator")
    assert_same(ANSWERS[name](translator), answers["translator"][name])
    assert (translator.recipe.warmup_steps, translator.recipe.r_drop) == (7, 1.0)


@pytest.mark.slow
def test_a_parser(files, answers):
    parser = Parser.load(files / "parser")
    assert_same(parser_answers(parser), answers["parser"])


@tensorflow_only
@pytest.mark.slow
def test_a_parser_is_trained_further(files, tmp_path):
    """Its linearization was saved without the fields of later versions."""
    parser, trees = Parser.load(files / "parser"), files / "toy.trees"
    write_trees(trees, [parser.parse(["It works"])[0]])
    settings = TrainingSettings(
        task="parsing",
        start_from=str(files / "parser"),
        tokenizer="subword",
        task_settings={"linearization": parser.linearization.to_dict()},
        max_steps=1,
    )
    corpus = TreebankCorpus(trees, parser.linearization)
    assert train(tmp_path / "model", corpus, None, settings).steps == 1


@pytest.mark.parametrize("name", ["transformer", pytest.param("composed", marks=pytest.mark.slow)])
def test_a_keras_file_with_its_optimizer(files, arrays, name):
    model = keras.models.load_model(files / f"{name}.keras")
    assert int(ops.convert_to_numpy(model.optimizer.iterations)) == 1
    assert_close(make.model_answer(model), arrays[name])
    make.train_a_step(model)
    expected = arrays[f"{name}_after_a_step"]
    np.testing.assert_allclose(make.model_answer(model), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_weights(files, arrays, name):
    model = MODELS[name]()
    model.load_weights(files / f"{name}.weights.h5")
    assert_close(make.model_answer(model), arrays[name])


@tensorflow_only
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_the_weights_of_a_saved_model(files, dtype):
    expected = Translator.load(files / "translator")
    if dtype == "bfloat16":
        expected.model = copy_of(expected.model, dtype)
    loaded = Translator.load(files / f"saved_model_{dtype}" / IN_SAVED_MODEL)
    found, attention = (attention_weights(one, *TEXTS[:2]) for one in (loaded, expected))
    assert (found.source, found.target) == (attention.source, attention.target)
    for kind in ("encoder", "decoder", "cross"):
        assert_close(getattr(found, kind), getattr(attention, kind))
    for one, other in zip(
        values(loaded.model.weights), values(expected.model.weights), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@tensorflow_only
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_model_answers(files, answers, dtype):
    name = f"saved_model_{dtype}"
    assert make.served_translations(files / name) == answers[name]


@tensorflow_only
@pytest.mark.parametrize("kind", ["plain", pytest.param("variant", marks=pytest.mark.slow)])
def test_an_interrupted_training_goes_on(files, answers, arrays, kind):
    lines = []
    result = make.train_translator(files / f"training_{kind}", kind, lines.append)
    assert result.steps == 8
    prefix = f"{kind}/"
    expected = {name: value for name, value in arrays.items() if name.startswith(prefix)}
    assert_same_weights(result.translator.model, expected, is_exact=False)
    # Also those of the moving average.
    losses = [line for line in lines if "validation loss" in line]
    for line, other in zip(losses, answers[kind], strict=True):
        numbers = [[float(n) for n in re.findall(r"\d+\.\d+", text)] for text in (line, other)]
        np.testing.assert_allclose(*numbers, atol=0.02)
