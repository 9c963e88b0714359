"""`keras-transformer parse`, and the part of `evaluate` that scores trees."""

import argparse
import dataclasses
import functools
import os
import sys
from typing import Any

from keras_transformer.cli.arguments import add_line_options, add_options, load_pipeline
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.text_files import (
    answer_all,
    check_output,
    chunks,
    count_lines,
    input_lines,
    open_output,
    read_all_lines,
    read_lines,
    save_answers,
    write_answers,
)
from keras_transformer.errors import UserError
from keras_transformer.parsing.evalb import EvalbParameters
from keras_transformer.parsing.parseval_score import parseval
from keras_transformer.parsing.treebank import NO_TREE, read_trees
from keras_transformer.parsing.trees import draw_tree, format_tree

_UNCONSTRAINED = {
    "--unconstrained": "search among all sequences of symbols, and repair those that are not trees"
}


def define_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `parse`."""
    add_line_options(parser, "parsed")
    options = {
        "--pretty": "write each tree on several lines, and an empty line after it",
        "--draw": "draw each tree, and write an empty line after it",
    }
    add_options(parser.add_argument_group("layout").add_mutually_exclusive_group(), options)
    add_options(parser, _UNCONSTRAINED)


def run(arguments: argparse.Namespace) -> None:
    """Parses the lines."""
    check_output(arguments.output, [arguments.input or "-", *arguments.model])
    if arguments.n_best is not None and (arguments.pretty or arguments.draw):
        raise UserError("--n-best writes one answer per line; leave out --pretty and --draw.")
    total = count_lines(arguments)
    parser, options = load_pipeline(arguments, "parsing")
    write_answers(
        arguments,
        Progress("parsing", total=total, unit="lines"),
        chunks(input_lines(arguments), arguments.chunk_size),
        functools.partial(_answers, parser, arguments),
        options | {"constrained": False if arguments.unconstrained else None},
    )


def _answers(parser, arguments, chunk, number, options):
    if arguments.n_best is None:
        write = draw_tree if arguments.draw else format_tree if arguments.pretty else str
        for tree in parser.parse(chunk, **options):
            yield NO_TREE if tree is None else write(tree)
            if arguments.pretty or arguments.draw:
                yield ""
        return
    for offset, parses in enumerate(parser.parses(chunk, **options)):
        answers = [(parse.score, parse.tree) for parse in parses] or [(0.0, NO_TREE)]
        for rank, (score, tree) in enumerate(answers, start=1):
            yield f"{number + offset}\t{rank}\t{score:.6f}\t{tree}"


def define_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `evaluate` that only parsing has."""
    options = {
        "--parameters NAME": "EVALB's parameters: collins (COLLINS.prm), new (new.prm), or a "
        "parameter file (default: collins)",
        "--table FILE": "file for EVALB's table, with a line for each sentence",
        **_UNCONSTRAINED,
    }
    add_options(parser.add_argument_group("parsing"), options)


def evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores a parser or existing parses, prints the scores and returns a report."""
    num_files = len(arguments.reference or ())
    if num_files != 1:
        rule = "--task parsing takes one --reference FILE, of gold trees"
        raise UserError(f"{rule}. Received: {num_files} files")
    parameters = _parameters(arguments.parameters or "collins")
    [reference] = arguments.reference
    details: dict[str, Any] = {}
    if arguments.hypothesis:
        gold, parses = _read_lines(reference, arguments.hypothesis)
    else:
        gold = list(read_trees(reference))
        parses, details = _parse(arguments, gold)
    score = parseval(gold, parses, parameters)
    summary, errors = score.all, [s for s in score.sentences if s.errors]
    if summary.num_errors or summary.num_skipped:
        first = f"; the first, {errors[0].number}: {errors[0].errors[0]}" if errors else ""
        say(
            f"EVALB's figures leave out {summary.num_errors:,} errors and "
            f"{summary.num_skipped:,} skipped sentences of {summary.num_sentences:,}{first}"
        )
    sys.stdout.write(f"{score.summary()}\n\n{score}\n")
    if arguments.table:
        with open_output(arguments.table) as file:
            file.write(score.table() + "\n")
    report = {"reference": reference, "parameters": dataclasses.asdict(parameters), **details}
    return report | {"num_trees": len(gold), "scores": score.to_dict()}


def _parameters(name):
    if name in ("collins", "new"):
        return EvalbParameters.new() if name == "new" else EvalbParameters()
    if not os.path.exists(name):
        rule = "--parameters must be collins, new or an existing parameter file"
        raise UserError(f"{rule}. Received: {name!r}")
    return EvalbParameters.from_file(name)


def _read_lines(reference, path):
    """Returns the gold trees and the lines of their parses."""
    parses = read_all_lines(path, "hypothesis")
    gold = list(read_lines(reference))
    # A gold tree may stand on several lines. `read_trees` raises if there is no tree.
    if len(gold) != len(parses) or not any("(" in line for line in gold):
        gold = list(read_trees(reference))
    return gold, parses


def _parse(arguments, gold):
    """Returns the parses of a model, and figures for the report."""
    parser, options = load_pipeline(arguments, "parsing")
    from keras_transformer.decoding import search_to_dict
    from keras_transformer.inference.batch_inference import one_answer

    options["search"] = search = one_answer(options["search"])
    options["constrained"] = False if arguments.unconstrained else None
    sentences = [tree.words() for tree in gold]
    progress = Progress("parsing", total=len(gold), unit="sentences")
    answers, seconds = answer_all(parser.parses, sentences, progress, **options)
    parses = [best.tree for best, *_ in answers]
    num_repaired = sum(best.num_repairs > 0 for best, *_ in answers)
    done = f"parsed {len(gold):,} sentences in {seconds:.1f} s"
    say(f"{done}; the trees of {num_repaired:,} needed repair")
    save_answers(arguments.output, map(str, parses))
    return parses, {
        "search": search_to_dict(search),
        "constrained": parser.constrained and not arguments.unconstrained,
        "num_repaired": num_repaired,
        "seconds": round(seconds, 2),
    }
