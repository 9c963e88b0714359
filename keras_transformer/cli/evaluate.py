"""`keras-transformer evaluate`: scores a model, or existing answers."""

import argparse
import json

from keras_transformer.cli.arguments import (
    SEARCH_OPTIONS,
    add_batch_options,
    add_model_option,
    add_options,
    add_search_options,
    is_given,
)
from keras_transformer.cli.task_commands import commands_of
from keras_transformer.cli.text_files import check_output, open_output
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import all_tasks, get_task

_MODEL_OPTIONS = (
    "--output",
    "--batch-size",
    "--streams",
    "--precision",
    "--quantize",
    *SEARCH_OPTIONS,
)


def evaluate_options(parser):
    tasks = [*map(commands_of, all_tasks())]
    names = [commands.task.name for commands in tasks]
    text = f"task of the model: {' or '.join(names)}"
    add_options(parser, {"--task TASK=translation": text}, choices=names)
    files = parser.add_argument_group("files: a model with a source, or a hypothesis")
    answers = files.add_mutually_exclusive_group(required=True)
    add_model_option(answers)
    add_options(answers, {"--hypothesis FILE": "existing answers, one per line"})
    text = "correct translations, line by line, with a file for each reference of a line; or one "
    text += "file of gold trees"
    add_options(files, {"--reference FILE": text}, action="extend", nargs="+")
    add_options(files, {"--output FILE": "file for the answers of the model"})
    add_options(files, {"--json FILE": "file for the scores as JSON"})
    # Several tasks may have the same commands.
    for commands in {type(each).add_evaluate_options: each for each in tasks}.values():
        commands.add_evaluate_options(parser)
    add_search_options(parser, n_best=False)
    add_batch_options(parser)


def run_evaluate(arguments):
    task = commands_of(get_task(arguments.task))
    for other in map(commands_of, all_tasks()):
        for option in sorted(_options(other) - _options(task)):
            if is_given(arguments, option):
                rule = f"{option} goes with --task {other.task.name}"
                raise UserError(f"{rule}. Received: task={arguments.task!r}")
    for option in (*_MODEL_OPTIONS, *task.model_options):
        if arguments.hypothesis and is_given(arguments, option):
            raise UserError(f"{option} goes with --model: with --hypothesis nothing is searched.")
    files = [arguments.hypothesis, *(arguments.reference or []), *(arguments.model or [])]
    files += [getattr(arguments, name) for name in task.evaluate_inputs]
    for name in ("output", "json", *task.evaluate_outputs):
        path = getattr(arguments, name)
        if path is not None:
            check_output(path, files)
            files.append(path)
    report = task.evaluate(arguments)
    if arguments.hypothesis:
        report["hypothesis"] = arguments.hypothesis
    else:
        report["model"] = arguments.model[0] if len(arguments.model) == 1 else arguments.model
        given = {name: getattr(arguments, name) for name in ("quantize", "engine")}
        report |= {name: value for name, value in given.items() if value}
    if arguments.json:
        with open_output(arguments.json) as file:
            file.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _options(commands):
    """Returns the options of `evaluate` that a task brings."""
    parser = argparse.ArgumentParser(add_help=False)
    commands.add_evaluate_options(parser)
    return {action.option_strings[0] for action in parser._actions}
