"""`keras-transformer evaluate --task parsing`: EVALB's figures of a parser, or of parses."""

import argparse
import dataclasses
import json
import os
import sys
import time

from keras_transformer.cli.arguments import CONSTRAINT_OPTIONS, beam_search, is_given
from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.text_files import check_output, open_output, read_all_lines, read_lines
from keras_transformer.errors import UserError

PARSING_OPTIONS = ("--parameters", "--table", "--unconstrained")
_MODEL_OPTIONS = ("--output", "--beam-size", "--length-penalty", "--streams", "--unconstrained")
_OF_TRANSLATION = ("--source", "--lowercase", "--tokenize", "--long-lines", *CONSTRAINT_OPTIONS)


def add_parsing_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only `--task parsing` has.

    Args:
        parser: parser of `evaluate`.
    """
    group = parser.add_argument_group("parsing: with --task parsing")
    group.add_argument(
        "--parameters",
        metavar="NAME",
        help="EVALB's parameters: collins (COLLINS.prm), new (new.prm), or a parameter file "
        "(default: collins)",
    )
    group.add_argument(
        "--table", metavar="FILE", help="write EVALB's table here, with a line for each sentence"
    )
    group.add_argument(
        "--unconstrained",
        action="store_true",
        help="do not hold the search to well-formed trees; what it writes is repaired afterwards",
    )


def evaluate_parsing(arguments: argparse.Namespace) -> None:
    """Scores parses against gold trees.

    Args:
        arguments: parsed arguments of `evaluate`.

    Raises:
        UserError: if an option makes no sense, or a file is missing, empty, or has another number
            of trees; with a model, also if a gold tree is broken.
    """
    _check(arguments)
    from keras_transformer.parsing.evaluation.parseval import parseval
    from keras_transformer.parsing.treebank import read_trees

    parameters = _parameters(arguments.parameters or "collins")
    [reference] = arguments.reference
    report = {"reference": reference, "parameters": dataclasses.asdict(parameters)}
    if arguments.hypothesis:
        report["hypothesis"] = arguments.hypothesis
        gold, parses = _read_lines(reference, arguments.hypothesis)
    else:
        gold = list(read_trees(reference))
        parses, details = _parse(arguments, gold)
        model = arguments.model[0] if len(arguments.model) == 1 else arguments.model
        report |= {"model": model, **details}
    report["num_trees"] = len(gold)
    score = parseval(gold, parses, parameters)
    _report_errors(score)
    sys.stdout.write(f"{score.summary()}\n\n{score}\n")
    if arguments.table:
        with open_output(arguments.table) as file:
            file.write(score.table() + "\n")
    if arguments.json:
        with open_output(arguments.json) as file:
            file.write(json.dumps(report | {"scores": score.to_dict()}, indent=2) + "\n")


def _check(arguments: argparse.Namespace) -> None:
    for option in _OF_TRANSLATION:
        if is_given(arguments, option):
            raise UserError(f"{option} goes with --task translation. Received: --task parsing")
    for option in _MODEL_OPTIONS:
        if arguments.hypothesis and is_given(arguments, option):
            raise UserError(f"{option} goes with --model: with --hypothesis nothing is parsed.")
    if len(arguments.reference) > 1:
        raise UserError(
            "--task parsing takes one file of gold trees. "
            f"Received: --reference with {len(arguments.reference)} files"
        )
    check_outputs(arguments)


def check_outputs(arguments: argparse.Namespace) -> None:
    """Checks the files that `evaluate` writes.

    Args:
        arguments: parsed arguments of `evaluate`.

    Raises:
        UserError: as `check_output`.
    """
    files = [arguments.source, arguments.hypothesis, arguments.parameters]
    files += [*arguments.reference, *(arguments.model or [])]
    for path in (arguments.output, arguments.json, arguments.table):
        if path is not None:
            check_output(path, files)
            files.append(path)


def _parameters(name: str):
    from keras_transformer.parsing.evaluation.evalb_parameters import EvalbParameters

    known = {"collins": EvalbParameters, "new": EvalbParameters.new}
    if name in known:
        return known[name]()
    if not os.path.exists(name):
        raise UserError(
            f"--parameters must be collins, new or an existing parameter file. Received: {name!r}"
        )
    return EvalbParameters.from_file(name)


def _read_lines(reference: str, path: str) -> tuple[list, list[str]]:
    """Returns the gold trees and the lines of the parses, line N of one for line N of the other."""
    from keras_transformer.parsing.treebank import read_trees

    parses = read_all_lines(path, "hypothesis")
    gold = list(read_lines(reference))
    # A gold tree may stand on several lines; what is no tree at all is named.
    if len(gold) != len(parses) or not any("(" in line for line in gold):
        gold = list(read_trees(reference))
    if len(gold) != len(parses):
        raise UserError(
            "The hypothesis must have a line for every gold tree. "
            f"Received: {path!r} with {len(parses):,} and {reference!r} with {len(gold):,} trees"
        )
    return gold, parses


def _report_errors(score) -> None:
    summary, errors = score.all, [s for s in score.sentences if s.errors]
    if not (summary.num_errors or summary.num_skipped):
        return
    first = f"; the first, {errors[0].number}: {errors[0].errors[0]}" if errors else ""
    say(
        f"EVALB's figures leave out {summary.num_errors:,} errors and {summary.num_skipped:,} "
        f"skipped sentences of {summary.num_sentences:,}{first}"
    )


def _parse(arguments: argparse.Namespace, gold: list) -> tuple[list, dict]:
    num_streams = load_backend_in_streams(arguments.streams)
    from keras_transformer.decoding import search_to_dict
    from keras_transformer.inference.batch_inference import one_answer
    from keras_transformer.parsing.parser import Parser

    parser = Parser.load(arguments.model)
    search = one_answer(beam_search(arguments, parser.search))
    constrained = False if arguments.unconstrained else None
    start = time.monotonic()
    with Progress("parsing", total=len(gold), unit="sentences") as progress:
        found = parser.parses(
            [tree.words() for tree in gold],
            search=search,
            batch_size=arguments.batch_size,
            num_streams=num_streams,
            progress=progress.update,
            constrained=constrained,
        )
    seconds = time.monotonic() - start
    parses = [answers[0].tree for answers in found]
    num_repaired = sum(answers[0].num_repairs > 0 for answers in found)
    say(
        f"parsed {len(gold):,} sentences in {seconds:.1f} s; the trees of {num_repaired:,} needed "
        "repair"
    )
    if arguments.output:
        with open_output(arguments.output) as file:
            file.writelines(f"{tree}\n" for tree in parses)
        say(f"wrote {arguments.output}")
    details = {
        "search": search_to_dict(search),
        "constrained": parser.constrained and not arguments.unconstrained,
        "num_repaired": num_repaired,
        "seconds": round(seconds, 2),
    }
    return parses, details
