"""`ParsingCommands`: the options, the data and the evaluation of parsing on the command line."""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.line_by_line import answer_all, load_pipeline, save_answers
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.task_commands import Corpora, TaskCommands, read_experiments
from keras_transformer.cli.text_files import open_output, read_all_lines, read_lines
from keras_transformer.errors import UserError
from keras_transformer.parsing.evaluation.evalb_parameters import EvalbParameters
from keras_transformer.parsing.evaluation.parseval import parseval
from keras_transformer.parsing.linearization import NUMBERS, Linearization
from keras_transformer.parsing.treebank import TreebankCorpus, read_trees
from keras_transformer.settings.setting import COUNT, SWITCH, FrozenSettings, setting
from keras_transformer.settings.training_settings import TrainingSettings

_trees = functools.partial(setting, table="parsing")


@dataclasses.dataclass(frozen=True)
class TreeSettings(FrozenSettings):
    """The trees of a training, and their form.

    Args:
        {settings}
    """

    trees: str | None = _trees(
        None,
        "training trees in brackets, in the style of the Penn Treebank, .gz too",
        metavar="FILE",
    )
    valid_trees: str | None = _trees(
        None, "trees to choose and watch the model by; never the test set", metavar="FILE"
    )
    limit_trees: int | None = _trees(
        None,
        "train on N of the trees, drawn at random; a larger N includes the trees of a smaller one",
        COUNT,
        unset="all",
    )
    emit_words: bool = _trees(False, "the model writes the words in trees")
    emit_tags: bool = _trees(False, "the model writes the tags of words in trees")
    emit_numbers: bool | None = _trees(
        None,
        "the model writes a number for each word in trees; without words, tags and numbers it "
        "writes XX for each, as in the paper",
        SWITCH,
        unset="true, unless it writes words or tags",
    )
    unlabelled_closing: bool = _trees(False, "the model writes closing brackets without labels")


UNCONSTRAINED = {
    "--unconstrained": "search among all sequences of symbols, and repair those that are not trees"
}


# Approximate number of opening and closing symbols, as in treebanks of English.
_NUM_SYMBOLS = 64


class ParsingCommands(TaskCommands):
    """The commands, options and data of parsing."""

    name, learns_from = "parsing", "trees"
    missing_data = "--task parsing needs --trees FILE and --valid-trees FILE."
    modules = ("keras_transformer.parsing.cli.parse",)
    settings = TreeSettings
    own_settings = ("f1_every", "f1_beam_size", "f1_trees")
    tables = {"parsing": "trees, for --task parsing"}
    defaults = {"preset": "parsing_small", "shared_vocabulary": False}
    experiments = read_experiments(__file__)
    data_kinds = {"trees": ("trees", "valid_trees")}
    evaluate_options = ("--parameters", "--table", "--unconstrained")
    model_options = ("--unconstrained",)
    evaluate_inputs = ("parameters",)
    evaluate_outputs = ("table",)

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        linearization = Linearization(**_linearization(values))
        corpora = (
            TreebankCorpus(values["trees"], linearization, limit=values["limit_trees"]),
            TreebankCorpus(values["valid_trees"], linearization),
        )
        for corpus in corpora:
            len(corpus)  # reads all trees, and raises if one is broken
        return Corpora(*corpora)

    def describe_data(self, values: Mapping[str, Any]) -> str:
        return values["trees"] or ""

    def training_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"linearization": _linearization(values)}

    def plan_vocabulary(
        self, settings: TrainingSettings, size: int, vocabulary: Any
    ) -> tuple[int | None, str]:
        if settings.linearization["words"]:
            return size, "for the words, as many for the trees"
        num_symbols = _NUM_SYMBOLS + len(NUMBERS) * settings.linearization["numbers"]
        return num_symbols, f"for the words, about {num_symbols} symbols for the trees"

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("parsing")
        options = {
            "--parameters NAME": "EVALB's parameters: collins (COLLINS.prm), new (new.prm), or a "
            "parameter file (default: collins)",
            "--table FILE": "file for EVALB's table, with a line for each sentence",
            **UNCONSTRAINED,
        }
        add_options(group, options)

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        num_files = len(arguments.reference or ())
        if num_files != 1:
            rule = "--task parsing takes one --reference FILE, of gold trees"
            raise UserError(f"{rule}. Received: {num_files} files")
        parameters = _parameters(arguments.parameters or "collins")
        [reference] = arguments.reference
        details = {}
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


def _linearization(values: Mapping[str, Any]) -> dict[str, Any]:
    words, tags, numbers = (values[f"emit_{part}"] for part in ("words", "tags", "numbers"))
    return {
        "words": words,
        "tags": tags,
        "numbers": not (words or tags) if numbers is None else numbers,
        "labelled_closing": not values["unlabelled_closing"],
    }


def _parameters(name: str) -> EvalbParameters:
    known = {"collins": EvalbParameters, "new": EvalbParameters.new}
    if name in known:
        return known[name]()
    if not os.path.exists(name):
        rule = "--parameters must be collins, new or an existing parameter file"
        raise UserError(f"{rule}. Received: {name!r}")
    return EvalbParameters.from_file(name)


def _read_lines(reference: str, path: str) -> tuple[list, list[str]]:
    """Returns the gold trees and the lines of their parses."""
    parses = read_all_lines(path, "hypothesis")
    gold = list(read_lines(reference))
    # A gold tree may stand on several lines. `read_trees` raises if there is no tree.
    if len(gold) != len(parses) or not any("(" in line for line in gold):
        gold = list(read_trees(reference))
    return gold, parses


def _parse(arguments: argparse.Namespace, gold: list) -> tuple[list, dict]:
    parser, options = load_pipeline(arguments, "parsing")
    from keras_transformer.decoding import search_to_dict
    from keras_transformer.inference.batch_inference import one_answer

    options["search"] = search = one_answer(options["search"])
    options["constrained"] = False if arguments.unconstrained else None
    sentences = [tree.words() for tree in gold]
    progress = Progress("parsing", total=len(gold), unit="sentences")
    found, seconds = answer_all(parser.parses, sentences, progress, **options)
    parses = [answers[0].tree for answers in found]
    num_repaired = sum(answers[0].num_repairs > 0 for answers in found)
    say(
        f"parsed {len(gold):,} sentences in {seconds:.1f} s; the trees of {num_repaired:,} needed "
        "repair"
    )
    save_answers(arguments.output, map(str, parses))
    return parses, {
        "search": search_to_dict(search),
        "constrained": parser.constrained and not arguments.unconstrained,
        "num_repaired": num_repaired,
        "seconds": round(seconds, 2),
    }
