"""`keras-transformer attend`: pages and pictures of models, and what it refuses."""

import re
import shlex
import shutil

import pytest

from keras_transformer.evaluation import attention_weights
from keras_transformer.export import export_saved_model
from keras_transformer.inference.translator import Translator
from keras_transformer.parsing.parser import Parser
from tests.evaluation.test_attention import Reader
from tests.tiny_parser import tiny_parser
from tests.tiny_translator import sentence

TEXT, ANSWER = sentence(4, 1), sentence(3, 2)


@pytest.mark.parametrize("task", [Translator, pytest.param(Parser, marks=pytest.mark.slow)])
def test_a_page_shows_the_models_own_answer(
    succeed, saved_model_directory, parser_directory, tmp_path, task
):
    directory = saved_model_directory if task is Translator else parser_directory
    outcome = succeed("attend", "--model", directory, TEXT, "--output", tmp_path / "a.html")
    assert outcome.output == ""
    data = Reader(tmp_path / "a.html").data
    assert tuple(data["cross"]["queries"]) == attention_weights(task.load(directory), TEXT).target
    assert data["title"] == TEXT


def test_a_given_translation_is_drawn_instead(succeed, saved_model_directory, tmp_path):
    options = "--translation", ANSWER, "--attention", "decoder", "--layer", 1, "--head", 2
    page = tmp_path / "a.HTML"
    succeed("attend", "--model", saved_model_directory, TEXT, *options, "--output", page)
    data = Reader(page).data
    expected = attention_weights(Translator.load(saved_model_directory), TEXT, ANSWER)
    assert tuple(data["decoder"]["queries"]) == expected.target
    assert (data["attention"], data["layer"], data["head"]) == ("decoder", 1, 2)


@pytest.mark.parametrize(
    "ending, options, beginning",
    [
        ("png", (), b"\x89PNG"),
        ("svg", ("--layer", 1), b"<?xml"),
        ("pdf", ("--layer", 1, "--head", 4), b"%PDF"),
    ],
)
def test_pictures_of_all_layers_of_one_and_of_one_head(
    succeed, saved_model_directory, tmp_path, ending, options, beginning
):
    path = tmp_path / f"picture.{ending}"
    succeed("attend", "--model", saved_model_directory, TEXT, *options, "--output", path)
    assert path.read_bytes().startswith(beginning)
    if ending == "svg":
        assert path.read_text().count('id="QuadMesh') == 4


@pytest.mark.slow
@pytest.mark.tensorflow_only("a SavedModel is written on the TensorFlow backend")
def test_a_saved_model_is_drawn_as_its_model_directory(succeed, refuse, tmp_path):
    pytest.importorskip("tensorflow_text")
    pipeline, pages = tiny_parser(), []
    for directory in (pipeline.save(tmp_path / "m"), export_saved_model(pipeline, tmp_path / "s")):
        pages.append(tmp_path / f"{directory.name}.html")
        succeed("attend", "--model", directory, TEXT, "--output", pages[-1])
    assert pages[0].read_bytes() == pages[1].read_bytes()
    shutil.rmtree(tmp_path / "s" / "assets.extra" / "model")
    line = refuse("attend", "--model", tmp_path / "s", TEXT, "--output", pages[0])
    assert "export the model again. Received: --model" in line


@pytest.mark.parametrize(
    "options, message",
    [
        ("{text} --output {folder}/a.txt", "must end in .html, .pdf, .png, .svg. Received: "),
        ("' ' --output {folder}/a.png", "text must have words. Received: ' '"),
        ("'{long}' --output {folder}/a.png", "at most 39 subwords.* Received: 50 subwords"),
        ("{text} --output {folder}/a.png --layer 9", "from 1 to 1. Received: --layer 9"),
        ("{text} --output {folder}/a.html --layer 1 --head 9", "1 to 4. Received: --head 9"),
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
