"""`translate`: every line of a file or a pipe, however long; several models; other draws."""

import json
import os
import threading
from unittest.mock import create_autospec

import pytest

from keras_transformer.decoding import GreedySearch, Sampling
from keras_transformer.errors import UserError
from keras_transformer.inference.translator import Translator
from tests.loaded_once import load_once
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

LINES = [sentence(2 + seed % 4, seed) for seed in range(7)]
CONSTRAINTS = ["--min-length", 9, "--no-repeat-ngram", 1, "--suppress-unknown"]
CONSTRAINTS += ["--repetition-penalty", 1.5]


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that gives `LINES` once, as `<(zcat lines.gz)` does."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = "".join(f"{line}\n" for line in LINES)
    writer = threading.Thread(target=path.write_text, args=(content,), daemon=True)
    writer.start()
    yield path
    writer.join(timeout=10)


def test_a_pipe_is_translated_whole_as_a_file_is(succeed, saved_model_directory, text, pipe):
    options = ["--model", saved_model_directory, "--chunk-size", 3]
    from_file = succeed("translate", *options, "--input", text("lines.txt", LINES)).output
    assert succeed("translate", *options, "--input", pipe).output == from_file
    assert from_file.count("\n") == len(LINES)


def test_texts_on_the_command_line_are_translated(succeed, refuse, saved_model_directory, text):
    options = ["--model", saved_model_directory]
    expected = succeed("translate", *options, "--input", text("lines.txt", LINES[:2])).output
    assert succeed("translate", LINES[0], LINES[1], *options).output == expected
    long = refuse("translate", *options, "red house " * 30, "--long-lines", "error")
    assert "the command line, line 1: " in long


@pytest.mark.slow
def test_prefixes_begin_the_answers(succeed, saved_model_directory, text):
    prefixes = text("prefixes.txt", ["a red", *[""] * 5, "the boat"])
    options = ["translate", "--model", saved_model_directory, "--chunk-size", 3]
    options += ["--input", text("lines.txt", LINES)]
    before = succeed(*options).output.splitlines()
    lines = succeed(*options, "--prefix", prefixes).output.splitlines()
    assert lines[0].startswith("a red") and lines[6].startswith("the boat")
    assert lines[1:6] == before[1:6]


@pytest.mark.slow
@pytest.mark.parametrize("number, received", [(1, "more"), (5, "more"), (8, "7")])
def test_a_pipe_of_another_length_than_its_prefixes_is_found_out(
    refuse, saved_model_directory, text, pipe, tmp_path, number, received
):
    prefixes = text("prefixes.txt", ["a"] * number)
    line = refuse("translate", "--model", saved_model_directory, "--input", pipe, "--chunk-size",
                  6, "--prefix", prefixes, "--output", tmp_path / "out.txt")  # fmt: skip
    assert f"with {number}, and {received} lines of input" in line
    assert not (tmp_path / "out.txt").exists()


def test_scores_of_tokens_sum_to_those_of_lines(succeed, saved_model_directory, text):
    options = ["score", "--model", saved_model_directory, "--source", text("source.txt", LINES)]
    options += ["--target", text("target.txt", LINES[::-1])]
    lines = succeed(*options, "--per-token").output.splitlines()
    for line in lines:
        total, number, tokens = line.split("\t")
        tokens = [float(token) for token in tokens.split()]
        assert len(tokens) == int(number)
        assert sum(tokens) == pytest.approx(float(total), abs=1e-4)
    without = succeed(*options).output.splitlines()
    assert without == [line.rpartition("\t")[0] for line in lines]


def test_a_long_line_is_split_truncated_or_refused(succeed, refuse, saved_model_directory, text):
    translator = Translator.load(saved_model_directory)
    long = " ".join(sentence(6, seed) + "." for seed in range(9))
    path = text("long.txt", [LINES[0], long, "", LINES[1]])
    options = ["translate", "--model", saved_model_directory, "--input", path]
    notes = {"split": "split 1 of 4 lines", "truncate": "warning: 1 of 4 sources"}
    for how, note in notes.items():
        outcome = succeed(*options, "--long-lines", how)
        expected = translator.translate([LINES[0], long, "", LINES[1]], long_texts=how)
        assert outcome.output.splitlines() == expected
        assert note in outcome.errors
        assert (outcome.output == succeed(*options).output) == (how == "split")
    line = refuse(*options, "--long-lines", "error")
    assert "line 2" in line and "or use --long-lines split or truncate" in line


@pytest.mark.slow
def test_n_best_answers_are_not_put_together_from_parts(
    succeed, refuse, saved_model_directory, text
):
    path = text("long.txt", [LINES[0], "red house " * 30])
    options = ["translate", "--model", saved_model_directory, "--input", path, "--n-best", 2]
    for more in ([], ["--long-lines", "error"]):
        line = refuse(*options, *more)
        assert "line 2" in line and "with --n-best split the line" in line
    line = refuse(*options, "--long-lines", "split")
    assert "Use --long-lines truncate or error." in line
    output = succeed(*options, "--long-lines", "truncate").output
    numbers = ["".join(line.split("\t")[:2]) for line in output.splitlines()]
    assert numbers == ["11", "12", "21", "22"]


@pytest.mark.slow
def test_parts_of_lines_draw_numbers_of_their_own(succeed, text, tmp_path):
    """A line of several batches leaves none of its seeds to the next line."""
    tiny_translator(search=Sampling(seed=5), max_source_length=4).save(tmp_path / "model")
    path = text("same.txt", ["a. a. a. a. a. a. a. a."] * 2)
    outcome = succeed("translate", "--model", tmp_path / "model", "--input", path,
                      "--chunk-size", 1, "--batch-size", 1)  # fmt: skip
    expected = []
    for number in range(2):
        translator = tiny_translator(search=Sampling(seed=5 + 8 * number), max_source_length=4)
        expected += translator.translate(["a. a. a. a. a. a. a. a."], batch_size=1)
    assert outcome.output.split("\n") == [*expected, ""]  # not at form feeds


@pytest.mark.slow
def test_several_models_answer_together(succeed, text, tmp_path, monkeypatch):
    paths = [
        tiny_translator(1, extra_length=6, search=GreedySearch()).save(tmp_path / "one"),
        tiny_translator(2).save(tmp_path / "two"),
    ]
    load_once(monkeypatch, *paths)
    together = Translator.load(paths)
    models = ["--model", paths[0], "--model", paths[1]]
    lines = text("lines.txt", LINES)
    outcome = succeed("translate", *models, "--input", lines)
    assert outcome.output.splitlines() == together.translate(LINES)

    targets = text("targets.txt", LINES[::-1])
    scored = succeed("score", *models, "--source", lines, "--target", targets).output
    for line, score in zip(scored.splitlines(), together.score(LINES, LINES[::-1]), strict=True):
        assert line == f"{score.log_probability:.6f}\t{score.num_tokens}"

    report = tmp_path / "report.json"
    succeed("evaluate", *models, "--source", lines, "--reference", targets,
            "--output", tmp_path / "out.txt", "--json", report)  # fmt: skip
    assert (tmp_path / "out.txt").read_text() == outcome.output
    assert json.loads(report.read_text())["model"] == list(map(str, paths))


def test_models_of_other_vocabularies_are_refused(refuse, saved_model_directory, text, tmp_path):
    other = Translator(tiny_model(vocab_size=300), tiny_tokenizer(300)).save(tmp_path / "other")
    models = ["--model", saved_model_directory, "--model", other]
    path = text("lines.txt", LINES)
    for command in (["translate", "--input", path], ["score", "--source", path, "--target", path]):
        line = refuse(*command, *models)
        assert all(str(path) in line for path in (saved_model_directory, other))
        assert "320 and 300 pieces" in line


@pytest.mark.slow
def test_translate_and_evaluate_take_constraints(succeed, saved_model_directory, text, tmp_path):
    path = text("lines.txt", LINES)
    model = ["--model", saved_model_directory]
    expected = succeed("translate", *model, *CONSTRAINTS, "--input", path).output
    assert expected != succeed("translate", *model, "--input", path).output
    succeed("evaluate", *model, *CONSTRAINTS, "--source", path, "--reference", path, "--output",
            tmp_path / "out.txt", "--json", tmp_path / "report.json")  # fmt: skip
    assert (tmp_path / "out.txt").read_text() == expected
    search = json.loads((tmp_path / "report.json").read_text())["search"]
    names = [constraint["name"] for constraint in search["constraints"]]
    assert names == ["minimum_length", "no_repeat_ngrams", "repetition_penalty", "suppress_tokens"]


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "auto"])
def test_precision_and_streams_are_those_of_the_options(
    refuse, kept_translator_directory, text, monkeypatch, dtype
):
    model = str(kept_translator_directory)
    translate = create_autospec(Translator.translate, side_effect=UserError("called"))
    load = create_autospec(Translator.load, return_value=tiny_translator())
    monkeypatch.setattr(Translator, "load", load)
    monkeypatch.setattr(Translator, "translate", translate)
    options = [] if dtype is None else ["--precision", dtype, "--streams", 3]
    line = refuse("translate", "--model", model, "--input", text("a.txt", LINES), *options)
    assert line.endswith("called")
    load.assert_called_once_with([model], dtype=dtype)
    assert dtype is None or translate.call_args.kwargs["num_streams"] == 3
