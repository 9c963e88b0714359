"""`keras-transformer attend`: pages and pictures of models, and what it refuses."""

import re
import shlex

import pytest

from keras_transformer.evaluation import attention_weights
from keras_transformer.inference.translator import Translator
from tests.evaluation.test_attention import Reader
from tests.tiny_translator import sentence

TEXT, ANSWER = sentence(4, 1), sentence(3, 2)


@pytest.mark.parametrize("translation", [None, ANSWER])
def test_a_page_shows_the_models_own_answer_or_a_given_one(
    succeed, saved_model_directory, tmp_path, translation
):
    options = [] if translation is None else ["--translation", translation]
    options += ["--attention", "decoder", "--layer", 1, "--head", 2]
    page = tmp_path / "a.HTML"
    succeed("attend", "--model", saved_model_directory, TEXT, *options, "--output", page)
    data = Reader(page).data
    expected = attention_weights(Translator.load(saved_model_directory), TEXT, translation)
    assert tuple(data["decoder"]["queries"]) == expected.target
    assert (data["attention"], data["layer"], data["head"]) == ("decoder", 1, 2)
    assert data["title"] == TEXT


@pytest.mark.parametrize(
    "ending, options, beginning",
    [("png", (), b"\x89PNG"), ("pdf", ("--layer", 1, "--head", 4), b"%PDF")],
)
def test_pictures_of_all_layers_and_of_one_head(
    succeed, saved_model_directory, tmp_path, ending, options, beginning
):
    path = tmp_path / f"picture.{ending}"
    succeed("attend", "--model", saved_model_directory, TEXT, *options, "--output", path)
    assert path.read_bytes().startswith(beginning)


@pytest.mark.parametrize(
    "options, message",
    [
        ("{text} --output {folder}/a.txt", "must end in .html, .pdf, .png, .svg. Received: "),
        ("'{long}' --output {folder}/a.png", "at most 39 subwords.* Received: 50 subwords"),
        ("{text} --output {folder}/a.png --layer 9", "from 1 to 1. Received: --layer 9"),
        ("{text} --output {folder}/a.png --head 1", "A head needs a layer. Received: --head 1"),
        ("{text} --output {folder}/a.png --model {model}", "one --model.* Received: 2"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    refuse, saved_model_directory, tmp_path, options, message
):
    values = {"text": "dog", "long": "a " * 50, "folder": tmp_path, "model": saved_model_directory}
    options = shlex.split(options.format(**values))
    assert re.search(message, refuse("attend", "--model", saved_model_directory, *options))
    assert not list(tmp_path.iterdir())
