"""`parse` writes a tree for every line, `evaluate` EVALB's figures; a mistake is one line."""

import json

import pytest

from keras_transformer.decoding import BeamSearch
from keras_transformer.parsing import draw_tree, format_tree, parseval, read_tree_lines, read_trees
from keras_transformer.parsing.parser import Parser
from tests.tiny_translator import sentence

LINES = [sentence(4, 0), "", sentence(1, 1), "( a\u00a0b )", " \t ", sentence(7, 2)]
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


@pytest.mark.usefixtures("slow_bfloat16")
def test_parse_writes_a_tree_for_every_line(succeed, parser_directory, text, tmp_path):
    path, output = text("lines.txt", LINES), tmp_path / "out.trees"
    parse = ["parse", "--model", parser_directory, "--input", path]
    trees = Parser.load(parser_directory).parse(LINES)
    assert [tree and tree.words() for tree in trees] == [
        LINES[0].split(" "), None, LINES[2].split(" "), ["(", "a\u00a0b", ")"], None,
        LINES[5].split(" "),
    ]  # fmt: skip
    outcome = succeed(*parse, "--output", output, "--chunk-size", 2)
    assert outcome.output == "" and "Computing in " in outcome.errors
    assert list(read_tree_lines(output, clean=False)) == trees
    for option, write in (("--pretty", format_tree), ("--draw", draw_tree)):
        expected = ["(())" if tree is None else write(tree) for tree in trees]
        assert succeed(*parse, option).output == "".join(f"{tree}\n\n" for tree in expected)


@pytest.fixture
def files(tmp_path):
    gold, parses = tmp_path / "gold.trees", tmp_path / "parses"
    gold.write_text(GOLD)
    parses.write_text(PARSES)
    return gold, parses


def evaluate(succeed, *arguments):
    outcome = succeed("evaluate", "--task", "parsing", "--reference", *arguments)
    assert "Computing in " not in outcome.errors  # Scores are those of float32 on every machine.
    return outcome.output


def test_evalbs_figures_of_two_files(succeed, files, tmp_path):
    """Of the first sentence 3 of 4 brackets are right; the others are left out by EVALB."""
    gold, parses = files
    output = evaluate(succeed, gold, "--hypothesis", parses, "--json", tmp_path / "scores",
                      "--table", tmp_path / "table")  # fmt: skip
    assert "Number of Skip  sentence  =      1" in output
    assert "Bracketing FMeasure       =  75.00" in output
    # 3 right, of 6 in the gold trees and 5 in the parses.
    assert f"F1, errors count as 0     = {100 * 2 * 3 / (6 + 5):6.2f}" in output
    signature = "COLLINS.prm|tags:parse|sentences:3|errors:1|skipped:1"
    assert output.endswith(f"\nF1 75.00 ({signature})\n")
    report = json.loads((tmp_path / "scores").read_text())
    assert report["scores"]["all"]["f1"] == 75 and report["num_trees"] == 3
    rows = (tmp_path / "table").read_text().splitlines()
    assert rows[0].lstrip().startswith("Sent.") and len(rows) == 3 + 3


def test_the_rules_may_be_others(succeed, files, tmp_path):
    """Of the first sentence NP is deleted; "a" is "the", so that the third is no error."""
    gold, parses = files
    rules = tmp_path / "own.prm"
    rules.write_text("DELETE_LABEL .\nDELETE_LABEL NP\nEQ_WORD a the\nCUTOFF_LEN 3\n")
    output = evaluate(succeed, gold, "--hypothesis", parses, "--parameters", rules)
    assert "Number of Error sentence  =      0" in output and "-- len<=3 --" in output
    # S and ADVP are right, VP is not.
    assert "Bracketing FMeasure       =  66.67" in output and "(own parameters|" in output
    output = evaluate(succeed, gold, "--hypothesis", parses, "--parameters", "new")
    assert "(new.prm|" in output


def test_a_parser_is_scored_by_its_parses(succeed, files, parser_directory, tmp_path):
    gold, output, scores = files[0], tmp_path / "out", tmp_path / "scores"
    printed = evaluate(succeed, gold, "--model", parser_directory, "--output", output,
                       "--json", scores, "--unconstrained", "--beam-size", 2)  # fmt: skip
    parses, trees = list(read_tree_lines(output)), list(read_trees(gold))
    words = [tree.words() for tree in trees]
    assert [tree.words() for tree in parses] == words
    assert printed.splitlines()[-1] == str(parseval(trees, parses))
    report = json.loads(scores.read_text())
    assert report["constrained"] is False and report["search"]["beam_size"] == 2
    parser = Parser.load(parser_directory)
    answers = parser.parses(words, BeamSearch(2, 0.3), constrained=False)
    repaired = sum(parses[0].num_repairs > 0 for parses in answers)
    assert report["num_repaired"] == repaired > 0
    assert evaluate(succeed, gold, "--hypothesis", output) == printed


@pytest.mark.parametrize("arguments, message", [
    ("parse --model {translator} --input {gold}", "use Translator.load, or `keras-tr"),
    ("parse --model {model} --input {gold} --n-best 2 --draw", "leave out --pretty and --draw"),
    ("--hypothesis {short}", "2 parses and 3 gold trees"),
    ("--model {model} --reference {broken}", "broken', line 2: the word 'the'"),
    ("--hypothesis {parses} --reference {gold} {gold}", "takes one --reference FILE"),
    ("--hypothesis {parses} --beam-size 2", "--beam-size goes with --model"),
    ("--hypothesis {parses} --parameters old", "existing parameter file. Received: 'old'"),
    ("--task translation --hypothesis {parses} --table x", "--table goes with --task parsing"),
])  # fmt: skip
def test_a_mistake_is_one_line(
    refuse, files, parser_directory, saved_model_directory, tmp_path, arguments, message
):
    gold, parses = files
    names = {"gold": gold, "parses": parses, "model": parser_directory}
    names["translator"] = saved_model_directory
    contents = {"short": "(NP (NN a))\n\n", "broken": "(NP (NN a))\n(NP the (NN b))\n\n"}
    for name, content in contents.items():
        names[name] = tmp_path / name
        names[name].write_text(content)
    words = arguments.format(**names).split()
    if words[0] != "parse":
        reference = [] if "--reference" in words else ["--reference", gold]
        words = ["evaluate", "--task", "parsing", *reference, *words]
    assert message in refuse(*words)
