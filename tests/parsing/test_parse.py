"""`parse`: a tree over the words of every line, and one clear line for what goes wrong."""

import io
import sys
import types

import pytest

from keras_transformer.decoding import BeamSearch
from keras_transformer.parsing import Tree, draw_tree, format_tree, read_tree_lines
from keras_transformer.parsing.parser import Parser
from tests.tiny_translator import sentence

LINES = [sentence(4, 0), "", sentence(1, 1), "( a\u00a0b )", " \t ", sentence(7, 2)]


def trees_of(directory, lines, **options):
    trees = Parser.load(directory).parse(lines, **options)
    return ["(())" if tree is None else str(tree) for tree in trees]


def test_every_line_has_its_tree(run, parser_directory, text, tmp_path):
    path, output = text("lines.txt", LINES), tmp_path / "out.trees"
    options = ["parse", "--model", parser_directory, "--input", path]
    outcome = run(*options)
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.output.splitlines() == trees_of(parser_directory, LINES)
    assert run(*options, "--output", output, "--chunk-size", 2).output == ""
    assert output.read_text() == outcome.output
    trees = list(read_tree_lines(output, clean=False))
    assert [tree and tree.words() for tree in trees] == [
        LINES[0].split(" "), None, LINES[2].split(" "), ["(", "a\u00a0b", ")"], None,
        LINES[5].split(" "),
    ]  # fmt: skip


@pytest.mark.slow
def test_standard_input_and_the_longest_lines(run, parser_directory, monkeypatch):
    long = sentence(300)
    stdin = types.SimpleNamespace(buffer=io.BytesIO(f"{long}\n\ndog".encode()), isatty=lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    outcome = run("parse", "--model", parser_directory, "--beam-size", 1)
    assert outcome.status == 0, outcome.errors
    first, second, third = outcome.output.splitlines()
    assert Tree.parse(first).words() == long.split(" ")
    assert (second, Tree.parse(third).words()) == ("(())", ["dog"])


def test_trees_to_look_at(run, parser_directory, text):
    path = text("lines.txt", LINES)
    trees = Parser.load(parser_directory).parse(LINES)
    for option, write in (("--pretty", format_tree), ("--draw", draw_tree)):
        outcome = run("parse", "--model", parser_directory, "--input", path, option)
        assert outcome.status == 0, outcome.errors
        expected = ["(())" if tree is None else write(tree) for tree in trees]
        assert outcome.output == "".join(f"{tree}\n\n" for tree in expected)


@pytest.mark.slow
def test_n_best_search_options_and_unconstrained(run, parser_directory, text):
    path = text("lines.txt", LINES)
    options = ["parse", "--model", parser_directory, "--input", path]
    outcome = run(*options, "--streams", 1, "--beam-size", 4, "--length-penalty", 1, "--n-best", 3)
    assert outcome.status == 0, outcome.errors
    parses = Parser.load(parser_directory).parses(LINES, BeamSearch(4, 1.0, n_best=3))
    expected = []
    for number, found in enumerate(parses, start=1):
        found = [(parse.score, parse.tree) for parse in found] or [(0.0, "(())")]
        expected += [
            f"{number}\t{rank}\t{score:.6f}\t{tree}"
            for rank, (score, tree) in enumerate(found, start=1)
        ]
    assert outcome.output.split("\n") == [*expected, ""]

    outcome = run(*options, "--beam-size", 1, "--unconstrained")
    free = trees_of(parser_directory, LINES, search=BeamSearch(1, 0.3), constrained=False)
    assert outcome.output.splitlines() == free
    assert free != trees_of(parser_directory, LINES, search=BeamSearch(1, 0.3))


def test_what_goes_wrong_is_one_line(run, parser_directory, saved_model_directory, text, tmp_path):
    good, output = text("good.txt", LINES), tmp_path / "out"
    parser = ["--model", parser_directory]
    for arguments, part in [
        (["--model", saved_model_directory, "--input", good], "use Translator.load, or `keras-tr"),
        ([*parser, "--input", text("bad.txt", b"a\nb\xff\n")], "bad.txt', line 2"),
        (["--model", tmp_path / "none", "--input", good], "none"),
        ([*parser, "--input", good, "--n-best", 2, "--draw"], "leave out --pretty and --draw"),
        ([*parser, "--input", good, "--beam-size", 2, "--n-best", 3], "--n-best"),
    ]:
        outcome = run("parse", *arguments, *([] if "--output" in arguments else
                      ["--output", output]))  # fmt: skip
        assert (outcome.status, outcome.output) == (2, ""), arguments
        assert outcome.errors.count("\n") == 1 and part in outcome.errors, outcome.errors
        assert not output.exists()


def test_translate_says_what_a_parser_is_for(run, parser_directory, text):
    outcome = run("translate", "--model", parser_directory, "--input", text("lines.txt", LINES))
    assert outcome.status == 2 and outcome.errors.count("\n") == 1
    assert "keras-transformer parse" in outcome.errors
