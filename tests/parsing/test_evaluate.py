"""`evaluate --task parsing`: EVALB's figures of files and of a parser; mistakes in one line."""

import json

import pytest

from keras_transformer.decoding import BeamSearch, search_to_dict
from keras_transformer.parsing import EvalbParameters, parseval, read_tree_lines, read_trees
from keras_transformer.parsing.parser import Parser

GOLD = """\
( (S (NP-SBJ (PRP It))
     (VP (VBZ works) (ADVP (RB well)))
     (. .)) )
(NP (NN rain) (. ?))
(NP (DT the) (NN dog))
"""
PARSES = """\
(S (NP (PRP It)) (VP (VBZ works)) (ADVP (RB well)) (. .))

(NP (DT a) (NN dog))
"""


@pytest.fixture
def files(tmp_path):
    gold, parses = tmp_path / "gold.trees", tmp_path / "parses"
    gold.write_text(GOLD)
    parses.write_text(PARSES)
    return gold, parses


def evaluate(run, *arguments):
    outcome = run("evaluate", "--task", "parsing", *arguments)
    assert outcome.status == 0, outcome.errors
    return outcome.output


def test_evalbs_figures_of_two_files(run, files, tmp_path):
    """Of the first sentence 3 of 4 brackets are right; the others are left out by EVALB."""
    gold, parses = files
    output = evaluate(run, "--reference", gold, "--hypothesis", parses, "--json",
                      tmp_path / "scores", "--table", tmp_path / "table")  # fmt: skip
    assert "Number of sentence        =      3" in output
    assert "Number of Error sentence  =      1" in output
    assert "Number of Skip  sentence  =      1" in output
    assert "Bracketing FMeasure       =  75.00" in output
    # 3 right, of 6 in the gold trees and 5 in the parses.
    assert f"F1, errors count as 0     = {100 * 2 * 3 / (6 + 5):6.2f}" in output
    assert "Tags for deletion         = the parse's own" in output
    signature = "COLLINS.prm|tags:parse|sentences:3|errors:1|skipped:1"
    assert output.endswith(f"\nF1 75.00 ({signature})\n")
    report = json.loads((tmp_path / "scores").read_text())
    assert report["scores"]["all"]["f1"] == 75 and report["num_trees"] == 3
    assert report["scores"]["signature"] == signature
    rows = (tmp_path / "table").read_text().splitlines()
    assert rows[0].lstrip().startswith("Sent.") and len(rows) == 3 + 3


def test_the_rules_may_be_those_of_new_prm(run, files):
    """There a question mark with its own tag is deleted, so that the parse has the gold's words."""
    gold, parses = files
    gold.write_text("(NP (NN rain) (? ?))\n")
    parses.write_text("(NP (NN rain))\n")
    options = "--reference", gold, "--hypothesis", parses
    assert "Number of Error sentence  =      1" in evaluate(run, *options)
    output = evaluate(run, *options, "--parameters", "new")
    assert "Number of Error sentence  =      0" in output and "(new.prm|" in output


def test_the_rules_may_be_those_of_a_file(run, files, tmp_path):
    """Of the first sentence NP is deleted; "a" is "the", so that the third is no error."""
    gold, parses = files
    rules = tmp_path / "own.prm"
    rules.write_text("DELETE_LABEL .\nDELETE_LABEL NP\nEQ_WORD a the\nCUTOFF_LEN 3\n")
    output = evaluate(run, "--reference", gold, "--hypothesis", parses, "--parameters", rules,
                      "--json", tmp_path / "scores")  # fmt: skip
    assert "Number of Error sentence  =      0" in output and "-- len<=3 --" in output
    # S and ADVP are right, VP is not.
    assert "Bracketing FMeasure       =  66.67" in output and "(own parameters|" in output
    report = json.loads((tmp_path / "scores").read_text())
    assert report["parameters"]["equal_words"] == [["a", "the"]]


@pytest.mark.parametrize("options", [
    pytest.param([], marks=pytest.mark.slow), ["--unconstrained", "--beam-size", 2],
])  # fmt: skip
def test_a_parser_is_scored_by_its_parses(run, files, parser_directory, tmp_path, options):
    gold, output, scores = files[0], tmp_path / "out", tmp_path / "scores"
    printed = evaluate(run, "--reference", gold, "--model", parser_directory, "--output", output,
                       "--json", scores, *options)  # fmt: skip
    parses, trees = list(read_tree_lines(output)), list(read_trees(gold))
    words = [tree.words() for tree in trees]
    assert [tree.words() for tree in parses] == words
    assert printed.splitlines()[-1] == str(parseval(trees, parses, EvalbParameters()))
    report = json.loads(scores.read_text())
    assert report["constrained"] is not bool(options)
    search = BeamSearch(2, 0.3) if options else BeamSearch(3, 0.3)
    assert report["search"] == search_to_dict(search)
    constrained = False if options else None
    answers = Parser.load(parser_directory).parses(words, search, constrained=constrained)
    repaired = sum(parses[0].num_repairs > 0 for parses in answers)
    assert report["num_repaired"] == repaired and bool(repaired) is bool(options)
    assert evaluate(run, "--reference", gold, "--hypothesis", output) == printed


@pytest.mark.parametrize("arguments, message", [
    ("--hypothesis {short}", "2 parses and 3 gold trees"),
    ("--hypothesis {empty}", "empty' is empty"),
    ("--model {model} --reference {broken}", "broken', line 2: the word 'the'"),
    ("--hypothesis {parses} --reference {gold} {gold}", "takes one --reference FILE"),
    ("--hypothesis {parses} --output {new}", "--output goes with --model"),
    ("--hypothesis {parses} --beam-size 2", "--beam-size goes with --model"),
    ("--hypothesis {parses} --table {missing}/x", "no-such-file/x"),
    ("--hypothesis {parses} --lowercase", "--lowercase goes with --task translation"),
    ("--hypothesis {parses} --parameters old", "existing parameter file. Received: 'old'"),
    ("--hypothesis {parses} --parameters {text}", "text', line 1: unknown keyword"),
    ("--task translation --hypothesis {parses} --table x", "--table goes with --task parsing"),
    ("--task translation --model {model} --source {gold}", "holds a Parser"),
])  # fmt: skip
def test_a_mistake_is_one_line(run, files, parser_directory, tmp_path, arguments, message):
    gold, parses = files
    names = {"gold": gold, "parses": parses, "missing": "no-such-file", "new": tmp_path / "new"}
    contents = {"short": "(NP (NN a))\n\n", "empty": "", "text": "A dog .\nA cat .\nRain .\n",
                "broken": "(NP (NN a))\n(NP the (NN b))\n\n"}  # fmt: skip
    for name, content in contents.items():
        names[name] = tmp_path / name
        names[name].write_text(content)
    before = sorted(tmp_path.iterdir())
    words = arguments.format(**names, model=parser_directory).split()
    if "--reference" not in words:
        words += ["--reference", gold]
    outcome = run("evaluate", "--task", "parsing", *words)
    assert (outcome.status, outcome.output, outcome.errors.count("\n")) == (2, "", 1)
    assert message in outcome.errors and sorted(tmp_path.iterdir()) == before
