"""`keras-transformer train`: trains a model, resumes a training, or estimates what it takes."""

import argparse
import itertools
import logging
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli import settings as train_settings
from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import TRAINING_STREAMS, load_backend, load_backend_in_streams
from keras_transformer.cli.corpus_defaults import choose_settings, keep_settings
from keras_transformer.cli.plan import describe_plan
from keras_transformer.cli.prepare import load_vocabulary
from keras_transformer.cli.progress import ProgressBar, say
from keras_transformer.cli.task_commands import commands_of
from keras_transformer.cli.text_files import open_output
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.layouts import CHECKPOINT_FOLDER, SETTINGS_FILE, VALID_FILES, find_config
from keras_transformer.settings.base import settings_fields
from keras_transformer.settings.presets import get_preset
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.settings.transformer_config import TransformerConfig

_POOR_SCORE = 10  # BLEU or F1


def train_options(parser: argparse.ArgumentParser) -> None:
    names = tuple(train_settings.all_experiments())
    width = max(map(len, names))
    rows = (f"  {name:<{width}}  {train_settings.describe_experiment(name)}" for name in names)
    heading = "The paper's trainings on WMT 2014, and of parsers on trees of your own:\n"
    group = parser.add_argument_group("built-in experiments", "\n".join((heading, *rows)))
    text = "use the settings of this experiment; --config and options on the command line override"
    text += " them"
    add_options(group, {"--experiment NAME": text}, choices=names)
    # Until version 1.0, the option was called `--recipe`.
    group.add_argument("--recipe", dest="experiment", choices=names, help=argparse.SUPPRESS)
    group = parser.add_argument_group("several machines, with Keras on JAX")
    options = {
        "--coordinator HOST:PORT": "start the same command on every machine, with the address of "
        "process 0; auto on a cluster that JAX knows, such as Slurm or TPU pods",
        "--processes N": "number of processes",
        "--process-id I": "number of this process, from 0",
    }
    add_options(group, options)
    group = parser.add_argument_group("plan")
    text = "print the model, its memory and the time of its training, and stop; a few steps of the"
    add_options(group, {"--plan": f"{text} model are measured"})
    text = "with --plan: memory of each device, which a step has to fit into"
    add_options(group, {"--device-memory GB": text})
    group = parser.add_argument_group("settings in a file")
    add_options(group, {"--config FILE": "TOML file of settings"})
    text = "print a TOML file of all settings, with a comment for each, and stop"
    add_options(group, {"--print-config": text})
    train_settings.add_tables(parser)


def run_train(arguments: argparse.Namespace) -> None:
    values = train_settings.resolve(arguments)
    commands = commands_of(get_task(values["task"]))
    if values["output"]:
        values = keep_settings(values)
    if arguments.print_config:
        _print_config(values)
        return
    train_settings.check_task(values)
    if arguments.plan:
        _print_plan(arguments, commands, values)
        return
    if arguments.device_memory:
        raise UserError("--device-memory goes with --plan.")
    if not values["output"]:
        raise UserError("--output DIR is required: the folder of the model.")
    kind = commands.data_kind(values)
    if values["start_from"]:
        find_config(values["start_from"])
    if not arguments.coordinator:
        if arguments.processes or arguments.process_id is not None:
            raise UserError("--processes and --process-id go with --coordinator.")
        _train(commands, kind, values, say)
        return
    load_backend()
    from keras_transformer.training import joined_processes

    with joined_processes(
        arguments.coordinator, arguments.processes, arguments.process_id
    ) as group:
        if not group.is_first:  # Process 0 speaks for all of them.
            logging.getLogger("keras_transformer").setLevel(logging.ERROR)
        _train(commands, kind, values, say if group.is_first else lambda line: None)


def _print_plan(arguments, commands, values):
    if arguments.coordinator or values["model_parallel"] > 1:
        raise UserError("--plan is for one process, without --model-parallel.")
    values = choose_settings(values, commands.open_known_corpus(values), say)
    for label, text in describe_plan(arguments.experiment, values, arguments.device_memory):
        sys.stdout.write(f"{label:<20}{text}\n")


def _train(commands, kind, values, report):
    # Errors in files are found before the backend is loaded.
    vocabulary = load_vocabulary(values)
    corpora = commands.open_corpora(kind, values)
    values = choose_settings(values, corpora.train, report)
    report("Loading Keras and its backend.")
    # XLA fuses small operations itself, so the default is one stream.
    streams = values["streams"] or (1 if values["jit_compile"] else None)
    values["streams"] = load_backend_in_streams(streams, TRAINING_STREAMS, trains=True)
    from keras_transformer.models.processor import has_fast_bfloat16
    from keras_transformer.training import train

    output, settings = values["output"], train_settings.training_settings(values)
    resumes = os.path.exists(os.path.join(output, SETTINGS_FILE))  # in the precision it has
    if not values["mixed_precision"] and not resumes and has_fast_bfloat16():
        report("This machine computes faster in bfloat16: consider --mixed-precision.")
    tokenizers = {
        "source_tokenizer": vocabulary or corpora.source_tokenizer,
        "target_tokenizer": corpora.target_tokenizer,
    }
    with training_progress(output, values["max_minutes"]) as progress:
        run_options = {**tokenizers, "report": report, "progress": progress.update}
        run_options["also_valid"] = corpora.also_valid
        result = train(output, corpora.train, corpora.valid, settings, **run_options)
    done = f"{result.steps:,} steps, {result.epochs:.1f} epochs, {result.minutes:.1f} minutes"
    report(f"wrote {output}: {done}")
    if result.score is not None and result.score < _POOR_SCORE:
        label = commands.task.score_label
        report(f"{label} {result.score:.2f} is poor: see docs/troubleshooting.md.")
    report("Next:")
    for words in _next_commands(commands, output, corpora.valid, values, result.pipeline):
        report(f"  {program()} {shlex.join(words)}")


def _next_commands(commands, output, valid_corpus, values, pipeline):
    """Yields the words of the commands that use and score the model."""
    from keras_transformer.data.mixed_corpus import HeldOutPairs
    from keras_transformer.export.formats import WILDCARDS

    task = commands.task
    yield task.command, "--model", output, next(iter(valid_corpus or [("TEXT",)]))[0]
    files = [values[name] for name in commands.valid_files.values()]
    if isinstance(valid_corpus, HeldOutPairs):
        files = [os.path.join(output, name) for name in VALID_FILES]
    if files and all(files):
        of_files = itertools.chain(*zip(commands.valid_files, files, strict=True))
        of_task = () if task.name == "translation" else ("--task", task.name)
        for option, name in commands.score_options.items():
            if values.get(name):
                of_task += (option,) if values[name] is True else (option, values[name])
        yield "evaluate", *of_task, "--model", output, *of_files
    if not getattr(pipeline, "constrained", True):  # A parser whose trees are repaired.
        return
    name = "".join("_" if letter in WILDCARDS else letter for letter in pathlib.Path(output).name)
    yield "export", "--model", output, "--output", f"saved_models/{name}/1"
    yield "serve", output


def program() -> str:
    """Returns the command for a shell, also if `keras-transformer` is not on the PATH."""
    if shutil.which("keras-transformer"):
        return "keras-transformer"
    if os.path.basename(sys.argv[0]) == "keras-transformer":
        return sys.argv[0]
    return f"{sys.executable} -m keras_transformer.cli"


def training_progress(output: str, max_minutes: float | None) -> ProgressBar:
    """Returns a training's progress bar, whose time includes the minutes of earlier runs."""
    from keras_transformer.training.checkpoints import Checkpoints, Progress

    state = Checkpoints(pathlib.Path(output, CHECKPOINT_FOLDER)).metadata() or {}
    used = Progress.from_dict(state).minutes
    return ProgressBar("training", unit="steps", minutes=max_minutes, used=used)


def _print_config(values: Mapping[str, Any]) -> None:
    corpus = commands_of(get_task(values["task"])).open_known_corpus(values)
    if corpus is not None:
        values = choose_settings(values, corpus, say)
    # For settings that are still None.
    examples = choose_settings(values, None, lambda line: None)
    preset = get_preset(examples["preset"] or "base")
    fields = settings_fields(TransformerConfig).items()
    model = {name: field.default for name, field in fields if not field.is_required()}
    model |= {**preset.config, **preset.recipe.to_dict(), "vocab_size": TrainingSettings.vocab_size}
    chosen = {name: value for name, value in examples.items() if value is not None}
    with open_output(None) as output:
        output.write(train_settings.render_config(values, model | chosen))
