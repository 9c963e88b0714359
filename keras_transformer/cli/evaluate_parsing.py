"""`keras-transformer evaluate --task parsing`: EVALB's figures of a parser, or of parses."""

import argparse
import json
import sys
import time

from keras_transformer.cli.arguments import CONSTRAINT_OPTIONS, beam_search, is_given
from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.text_files import check_output, open_output
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
        choices=("collins", "new"),
        metavar="NAME",
        help="EVALB's rules: those of COLLINS.prm (collins) or new.prm (new) (default: collins)",
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
        UserError: if an option makes no sense, or a file is missing, damaged, empty, or has
            another number of trees.
    """
    _check(arguments)
    from keras_transformer.data import read_trees

    [reference] = arguments.reference
    gold = list(read_trees(reference))
    report = {"reference": reference, "num_trees": len(gold)}
    if arguments.hypothesis:
        report["hypothesis"] = arguments.hypothesis
        parses = _read_parses(arguments.hypothesis, reference, len(gold))
    else:
        parses, details = _parse(arguments, gold)
        model = arguments.model[0] if len(arguments.model) == 1 else arguments.model
        report |= {"model": model, **details}
    from keras_transformer.evaluation import EvalbParameters, parseval

    parameters = EvalbParameters.new() if arguments.parameters == "new" else EvalbParameters()
    score = parseval(gold, parses, parameters)
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
    for path in (arguments.output, arguments.json, arguments.table):
        check_output(path)


def _read_parses(path: str, reference: str, num_gold: int) -> list:
    from keras_transformer.data import read_tree_lines

    parses = list(read_tree_lines(path))
    if not parses:
        raise UserError(f"The hypothesis file {path!r} is empty.")
    if len(parses) != num_gold:
        raise UserError(
            "The hypothesis must have a line for every gold tree. "
            f"Received: {path!r} with {len(parses):,} and {reference!r} with {num_gold:,} trees"
        )
    return parses


def _parse(arguments: argparse.Namespace, gold: list) -> tuple[list, dict]:
    num_streams = load_backend_in_streams(arguments.streams)
    from keras_transformer.batch_inference import one_answer
    from keras_transformer.decoding import search_to_dict
    from keras_transformer.parser import Parser

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
