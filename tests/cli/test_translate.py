"""`translate` and `score`: every line of a file or a pipe, however long."""

import os
import threading
from unittest.mock import Mock

import pytest

from keras_transformer.export import CTranslate2Engine
from keras_transformer.inference.translator import Translator
from tests.tiny_translator import sentence

LINES = [sentence(2 + seed % 4, seed) for seed in range(7)]


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


def test_texts_on_the_command_line_are_translated(succeed, refuse, saved_model_directory, text):
    options = ["--model", saved_model_directory]
    expected = succeed("translate", *options, "--input", text("lines.txt", LINES[:2])).output
    assert succeed("translate", LINES[0], LINES[1], *options).output == expected
    long = refuse("translate", *options, "red house " * 30, "--long-lines", "error")
    assert "the command line, line 1: " in long


def test_prefixes_begin_the_answers_of_a_pipe(succeed, refuse, saved_model_directory, text, pipe):
    prefixes = text("prefixes.txt", ["a red", *[""] * 5, "the boat"])
    options = ["translate", "--model", saved_model_directory, "--chunk-size", 3]
    lines = succeed(*options, "--prefix", prefixes, "--input", pipe).output.splitlines()
    assert lines[0].startswith("a red") and lines[6].startswith("the boat")
    assert len(lines) == 7
    options += ["--input", text("lines.txt", LINES[:6])]
    assert "with 7, and 6 lines of input" in refuse(*options, "--prefix", prefixes)


def test_answers_contain_the_terms_of_a_glossary(succeed, refuse, saved_model_directory, text):
    path = text("terms.tsv", ["dog\tyoung cat", "boat\twindow"])
    options = ["translate", "--model", saved_model_directory, "--glossary", path]
    lines = succeed(*options, "a dog sleeps", "the house", "{x} boat").output.splitlines()
    plain = succeed(*options[:3], "the house").output.splitlines()
    assert "young cat" in lines[0] and [lines[1]] == plain and "window" in lines[2]
    kept = succeed(*options, "--keep-placeholders", "the <b> boat").output
    assert "<b>" in kept and "window" in kept
    path.write_text("dog\tcat\n\n")
    assert "terms.tsv', line 2: a line of a glossary is" in refuse(*options, "a dog")
    export = ["export", "--model", saved_model_directory, "--output", "x", "--format", "litert"]
    assert "--glossary is for --format saved_model" in refuse(*export, "--glossary", path)
    assert "line 2: a line" in refuse("serve", saved_model_directory, "--glossary", path)


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


@pytest.mark.usefixtures("slow_bfloat16")
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
    line = refuse(*options, "--n-best", 2)
    assert "line 2" in line and "with --n-best split the line" in line


def test_answers_are_those_of_a_quantized_translator(succeed, saved_model_directory, text):
    translator = Translator.load(saved_model_directory)
    translator.quantize()
    options = ["--model", saved_model_directory, "--input", text("source.txt", LINES)]
    outcome = succeed("translate", *options, "--quantize", "int8")
    assert outcome.output.splitlines() == translator.translate(LINES)
    assert "Computing in " not in outcome.errors
    assert "Computing in " in succeed("translate", *options).errors


@pytest.mark.usefixtures("slow_bfloat16")
def test_ctranslate2_searches(succeed, refuse, saved_model_directory, text, monkeypatch):
    pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    engine = Mock(wraps=CTranslate2Engine)
    monkeypatch.setattr("keras_transformer.export.CTranslate2Engine", engine)
    options = ["translate", "--model", saved_model_directory, "--input", text("in.txt", LINES)]
    options += ["--beam-size", 1]
    outcome = succeed(*options, "--engine", "ctranslate2")
    assert engine.call_count == 1
    assert outcome.output == succeed(*options).output and engine.call_count == 1
    refused = refuse(*options, "--engine", "ctranslate2", "--keep-placeholders")
    assert "no glossaries" in refused
    refused = refuse(*options, "--engine", "ctranslate2", "--precision", "bfloat16")
    assert "--precision is for Keras" in refused
