"""Files of version 0.1 load, answer as they did, and go on being trained."""

import csv
import json
import tarfile

import numpy as np
import pytest

from keras_transformer import Parser, Translator
from tests.closeness import assert_all_close, assert_close
from tests.release_0_1 import make

pytestmark = pytest.mark.tensorflow_only("TensorFlow trained them")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release_0_1")
    with tarfile.open(make.ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def answers(files):
    return json.loads((files / "answers.json").read_text())


def assert_same(found, expected):
    """Compares nested lists: texts exactly, numbers up to rounding."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert_close(found, expected, scale=1.0)
    else:
        assert found == expected


ANSWERS = [
    "hypotheses",
    *(pytest.param(n, marks=pytest.mark.slow) for n in make.ANSWERS if n != "hypotheses"),
]


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_a_translator(files, answers, name):
    translator = Translator.load(files / "translator")
    found = make.ANSWERS[name](translator)
    assert found
    assert_same(found, answers["translator"][name])


def test_settings_of_a_translator(files):
    translator = Translator.load(files / "translator")
    expected = make.make_translator()
    for name in ("search", "extra_length", "max_source_length", "recipe", "sentence_profile"):
        assert getattr(translator, name) == getattr(expected, name)


@pytest.mark.slow
def test_a_parser(files, answers):
    parser = Parser.load(files / "parser")
    assert parser.constrained
    assert_same(make.parser_answers(parser), answers["parser"])


@pytest.mark.slow
def test_a_saved_model(files, answers):
    import tensorflow as tf

    module = tf.saved_model.load(str(files / "saved_model"))
    found = module.signatures["serving_default"](tf.constant(make.TEXTS))
    texts = [text.decode() for text in found["translation"].numpy()]
    # A SavedModel does not split texts, and gives the best hypothesis.
    assert texts == [of_text[0][0] for of_text in answers["translator"]["hypotheses"]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["translator", "parser"])
def test_a_training_goes_on(files, kind):
    def rows():
        return list(csv.DictReader((files / f"{kind}_training" / "history.csv").open()))

    [before] = rows()
    result = getattr(make, f"train_{kind}")(files / f"{kind}_training", max_steps=7)
    assert result.steps == 7
    # A newer version adds columns.
    assert before.items() <= rows()[0].items()
    with np.load(files / f"{kind}_after_7_steps.npz") as expected:
        assert_all_close(getattr(result, kind).model.get_weights(), list(expected.values()))
