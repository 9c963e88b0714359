"""`parse`, and `ParsingCommands`: parsing on the command line."""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer import parsing
from keras_transformer.cli.arguments import add_line_options, add_options, load_pipeline
from keras_transformer.cli.progress import ProgressBar, say
from keras_transformer.cli.task_commands import Corpora, TaskCommands
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
from keras_transformer.parsing.linearization import NUMBERS
from keras_transformer.parsing.parseval_score import parseval
from keras_transformer.parsing.task import ParsingSettings
from keras_transformer.parsing.trees import NO_TREE, draw_tree, format_tree, read_trees
from keras_transformer.settings.base import Count, File, Settings, settings_dataclass

# Approximate number of opening and closing symbols, as in treebanks of English.
_NUM_SYMBOLS = 64
_NUM_JOINED = 1_000
UNCONSTRAINED = {
    "--unconstrained": "search among all sequences of symbols, and repair those that are not trees"
}


@settings_dataclass
class ParsingData(Settings):
    """The options of `train` for trees.

    Args:
        trees: Training trees in brackets, in the style of the Penn Treebank, .gz too.
        valid_trees: Trees to choose and watch the model by; never the test set.
        limit_trees: Train on N of the trees, drawn at random; a larger N includes the trees of a
            smaller one; None for all.
        emit_words: The model writes the words in trees.
        emit_tags: The model writes the tags of words in trees.
        emit_numbers: The model writes a number for each word in trees; without any of these forms
            it writes XX for each, as in the paper; None for true only with `--unlabelled-closing`
            or `--no-emit-joined`.
        emit_joined: The model writes the brackets around each word as one symbol; None for true,
            unless another form is chosen.
        max_unary: Maximum number of constituents in a row that have a single part each; None for 8.
        unlabelled_closing: The model writes closing brackets without labels.
    """

    trees: File | None = None
    valid_trees: File | None = None
    limit_trees: Count | None = None
    emit_words: bool = False
    emit_tags: bool = False
    emit_numbers: bool | None = None
    emit_joined: bool | None = None
    max_unary: Count | None = None
    unlabelled_closing: bool = False


class ParsingCommands(TaskCommands):
    """Parsing on the command line, as `TaskCommands` describes it."""

    learns_from = "trees"
    commands = {"parse": "keras_transformer.cli.parsing"}
    data = ParsingData
    data_table = settings_table = "parsing"
    headings = {"parsing": "trees, for --task parsing"}
    defaults = {
        "preset": "parsing_small",
        "vocabulary_type": "subword",  # whole words: each symbol of a tree belongs to one
        "vocab_size": 12_000,
        "shared_vocabulary": False,
    }
    not_here = ("shared_vocabulary", "bpe_dropout")
    data_kinds = {"trees": (("trees", "valid_trees"),)}
    missing_data = "--task parsing needs --trees FILE and --valid-trees FILE."
    model_options = ("--unconstrained",)
    evaluate_inputs = ("parameters",)
    evaluate_outputs = ("table",)
    valid_files = {"--reference": "valid_trees"}

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        linearization = parsing.Linearization(**_linearization(values))
        corpora = (
            parsing.TreebankCorpus(values["trees"], linearization, limit=values["limit_trees"]),
            parsing.TreebankCorpus(values["valid_trees"], linearization),
        )
        for corpus in corpora:
            len(corpus)  # reads all trees, and raises if one is broken
        return Corpora(*corpora)

    def describe_data(self, values: Mapping[str, Any]) -> str:
        return values["trees"] or ""

    def task_settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"linearization": _linearization(values)}

    def plan_vocabulary(self, settings, size: int, vocabulary: Any) -> tuple[int | None, str]:
        linearization = ParsingSettings.from_dict(settings.task_settings).linearization
        if linearization["words"]:
            return size, "for the words, as many for the trees"
        num_symbols = _NUM_SYMBOLS + len(NUMBERS) * linearization["numbers"]
        num_symbols += _NUM_JOINED * linearization["joined"]
        return num_symbols, f"for the words, about {num_symbols} symbols for the trees"

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        options = {
            "--parameters NAME": "EVALB's parameters: collins (COLLINS.prm), new (new.prm), or a "
            "parameter file (default: collins)",
            "--table FILE": "file for EVALB's table, with a line for each sentence",
            **UNCONSTRAINED,
        }
        add_options(parser.add_argument_group("parsing"), options)

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
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


def _linearization(values):
    words, tags, numbers = (values[f"emit_{name}"] for name in ("words", "tags", "numbers"))
    joined, is_unlabelled = values["emit_joined"], values["unlabelled_closing"]
    if joined is None:
        joined = not (words or tags or is_unlabelled) and numbers is None
    if numbers is None:
        numbers = not (words or tags or joined)
    form = {"words": words, "tags": tags, "numbers": numbers, "joined": joined}
    form["labelled_closing"] = not (is_unlabelled or joined)
    limit = values["max_unary"]
    return form if limit is None else {**form, "max_unary": limit}


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
    parser, options = load_pipeline(arguments, "parsing", "float32")
    from keras_transformer.decoding import search_to_dict
    from keras_transformer.inference.batch_inference import one_answer

    options["search"] = search = one_answer(options["search"])
    options["constrained"] = False if arguments.unconstrained else None
    sentences = [tree.words() for tree in gold]
    progress = ProgressBar("parsing", total=len(gold), unit="sentences")
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


def parse_options(parser):
    add_line_options(parser, "parsed")
    options = {
        "--pretty": "write each tree on several lines, and an empty line after it",
        "--draw": "draw each tree, and write an empty line after it",
    }
    add_options(parser.add_argument_group("layout").add_mutually_exclusive_group(), options)
    add_options(parser, UNCONSTRAINED)


def run_parse(arguments):
    check_output(arguments.output, [arguments.input or "-", *arguments.model])
    if arguments.n_best is not None and (arguments.pretty or arguments.draw):
        raise UserError("--n-best writes one answer per line; leave out --pretty and --draw.")
    total = count_lines(arguments)
    parser, options = load_pipeline(arguments, "parsing")
    write_answers(
        arguments,
        ProgressBar("parsing", total=total, unit="lines"),
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
