"""`keras-transformer evaluate`: scores a model, or answers that already exist."""

import argparse
import json

from keras_transformer.cli.arguments import (
    add_batch_options,
    add_model_option,
    add_options,
    add_search_options,
    is_given,
)
from keras_transformer.cli.task_commands import task_commands
from keras_transformer.cli.text_files import check_output, open_output
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import command_names, get_commands

_MODEL_OPTIONS = (
    *("--output", "--streams", "--precision"),
    *("--beam-size", "--length-penalty", "--patience"),
)


def define_options(parser: argparse.ArgumentParser) -> None:
    names = command_names()
    text = f"task of the model: {' or '.join(names)} (default: %(default)s)"
    add_options(parser, {"--task TASK": text}, choices=names, default="translation")
    files = parser.add_argument_group("files: a model with a source, or a hypothesis")
    answers = files.add_mutually_exclusive_group(required=True)
    add_model_option(answers)
    add_options(answers, {"--hypothesis FILE": "answers that exist already, one per line"})
    text = (
        "correct translations, line by line, with a file for each reference of a line; or one file "
        "of gold trees"
    )
    add_options(files, {"--reference FILE": text}, action="extend", nargs="+")
    outputs = {
        "--output FILE": "file for the answers of the model",
        "--json FILE": "file for the scores as JSON",
    }
    add_options(files, outputs)
    for task in task_commands():
        task.add_evaluate_options(parser)
    add_search_options(parser, n_best=False)
    add_batch_options(parser)


def run(arguments: argparse.Namespace) -> None:
    commands = get_commands(arguments.task)
    for other in task_commands():
        for option in set(other.evaluate_options) - set(commands.evaluate_options):
            if is_given(arguments, option):
                rule = f"{option} goes with --task {other.name}"
                raise UserError(f"{rule}. Received: task={commands.name!r}")
    for option in (*_MODEL_OPTIONS, *commands.model_options):
        if arguments.hypothesis and is_given(arguments, option):
            raise UserError(f"{option} goes with --model: with --hypothesis nothing is searched.")
    files = [arguments.hypothesis, *(arguments.reference or []), *(arguments.model or [])]
    files += [getattr(arguments, name) for name in commands.evaluate_inputs]
    for name in ("output", "json", *commands.evaluate_outputs):
        path = getattr(arguments, name)
        if path is not None:
            check_output(path, files)
            files.append(path)
    report = commands.evaluate(arguments)
    if arguments.hypothesis:
        report["hypothesis"] = arguments.hypothesis
    else:
        report["model"] = arguments.model[0] if len(arguments.model) == 1 else arguments.model
    if arguments.json:
        with open_output(arguments.json) as file:
            file.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
