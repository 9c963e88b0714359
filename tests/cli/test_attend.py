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
    run, saved_model_directory, parser_directory, tmp_path, task
):
    directory = saved_model_directory if task is Translator else parser_directory
    outcome = run("attend", "--model", directory, TEXT, "--output", tmp_path / "a.html")
    assert (outcome.status, outcome.output) == (0, ""), outcome.errors
    data = Reader(tmp_path / "a.html").data
    assert tuple(data["cross"]["queries"]) == attention_weights(task.load(directory), TEXT).target
    assert data["title"] == TEXT


def test_a_given_translation_is_drawn_instead(run, saved_model_directory, tmp_path):
    options = "--translation", ANSWER, "--attention", "decoder", "--layer", 1, "--head", 2
    page = tmp_path / "a.HTML"
    outcome = run("attend", "--model", saved_model_directory, TEXT, *options, "--output", page)
    assert outcome.status == 0, outcome.errors
    data = Reader(page).data
    expected = attention_weights(Translator.load(saved_model_directory), TEXT, ANSWER)
    assert tuple(data["decoder"]["queries"]) == expected.target
    assert (data["attention"], data["layer"], data["head"]) == ("decoder", 1, 2)


@pytest.mark.parametrize(
    ("ending", "options"),
    [("png", ()), ("svg", ("--layer", "1")), ("pdf", ("--layer", "1", "--head", "4"))],
)
def test_pictures_of_all_layers_of_one_and_of_one_head(
    run, saved_model_directory, tmp_path, ending, options
):
    path = tmp_path / f"picture.{ending}"
    outcome = run("attend", "--model", saved_model_directory, TEXT, *options, "--output", path)
    assert outcome.status == 0, outcome.errors
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(begins)
    if ending == "svg":
        assert path.read_text().count('id="QuadMesh') == 4


@pytest.mark.slow
@pytest.mark.tensorflow_only("a SavedModel is written on the TensorFlow backend")
def test_a_saved_model_is_drawn_as_its_model_directory(run, tmp_path):
    pytest.importorskip("tensorflow_text")
    pipeline, pages = tiny_parser(), []
    for directory in (pipeline.save(tmp_path / "m"), export_saved_model(pipeline, tmp_path / "s")):
        pages.append(tmp_path / f"{directory.name}.html")
        outcome = run("attend", "--model", directory, TEXT, "--output", pages[-1])
        assert outcome.status == 0, outcome.errors
    assert pages[0].read_bytes() == pages[1].read_bytes()
    shutil.rmtree(tmp_path / "s" / "assets.extra" / "model")
    outcome = run("attend", "--model", tmp_path / "s", TEXT, "--output", pages[0])
    assert outcome.status == 2 and "export the model again. Received: --model" in outcome.errors


@pytest.mark.parametrize(
    "line, message",
    [
        ("{text} --output {folder}/a.txt", "must end in .html, .pdf, .png, .svg. Received: "),
        ("{text} --output {folder}/a", "Received: --output"),
        ("{text} --output {folder}/no/a.png", "folder of the output does not exist. Received"),
        ("' ' --output {folder}/a.png", "text must have words. Received: ' '"),
        ("'{long}' --output {folder}/a.png", "at most 39 subwords.* Received: 50 subwords"),
        ("{text} --output {folder}/a.png --layer 9", "from 1 to 1. Received: --layer 9"),
        ("{text} --output {folder}/a.png --layer 0", "at least 1. Received: '0'"),
        ("{text} --output {folder}/a.html --layer 1 --head 9", "1 to 4. Received: --head 9"),
        ("{text} --output {folder}/a.html --layer 1 --head 0", "at least 1. Received: '0'"),
        ("{text} --output {folder}/a.png --head 1", "A head needs a layer. Received: --head 1"),
        ("{text} --output {folder}/a.png --attention all", "invalid choice: 'all'"),
        ("{text} --output {folder}/a.png --model {model}", "one --model.* Received: 2"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    run, saved_model_directory, tmp_path, line, message
):
    values = {"text": "dog", "long": "a " * 50, "folder": tmp_path, "model": saved_model_directory}
    outcome = run("attend", "--model", saved_model_directory, *shlex.split(line.format(**values)))
    assert outcome.status == 2
    assert outcome.errors.count("\n") == 1 and re.search(message, outcome.errors), outcome.errors
    assert not list(tmp_path.iterdir())
