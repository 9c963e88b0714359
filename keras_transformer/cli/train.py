"""`keras-transformer train`: trains a model, or resumes a training."""

import argparse
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import TRAINING_STREAMS, load_backend_in_streams
from keras_transformer.cli.corpus_defaults import choose_settings, keep_settings
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.settings import (
    add_tables,
    all_experiments,
    check_task,
    data_kind,
    describe_experiment,
    render_config,
    resolve,
    training_settings,
)
from keras_transformer.cli.vocab import load_vocabulary
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.settings.presets import get_preset
from keras_transformer.settings.setting import declarations
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.settings.transformer_config import TransformerConfig


def define_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `train`."""
    names = tuple(all_experiments())
    width = max(map(len, names))
    rows = (f"  {name:<{width}}  {describe_experiment(name)}" for name in names)
    heading = "The paper's trainings on WMT 2014, and of parsers on trees of your own:\n"
    group = parser.add_argument_group("built-in experiments", "\n".join((heading, *rows)))
    text = (
        "use the settings of this experiment; --config and options on the command line win over "
        "them"
    )
    add_options(group, {"--experiment NAME": text}, choices=names)
    # The name of this option until version 1.0.
    group.add_argument("--recipe", dest="experiment", choices=names, help=argparse.SUPPRESS)
    plan = parser.add_argument_group("plan")
    options = {
        "--plan": "print the model, its memory and the time of its training, and stop; a few steps "
        "of the model are measured",
        "--device-memory GB": "with --plan: memory of each device, which a step has to fit into",
    }
    add_options(plan, options)
    config = {
        "--config FILE": "TOML file of settings",
        "--print-config": "print a TOML file of all settings, with a comment for each, and stop",
    }
    add_options(parser.add_argument_group("settings in a file"), config)
    add_tables(parser)


def run(arguments: argparse.Namespace) -> None:
    """Trains the model, or prints its settings or its plan."""
    values = resolve(arguments)
    task = get_task(values["task"])
    if arguments.print_config:
        _print_config(values)
        return
    check_task(values)
    if arguments.plan:
        from keras_transformer.cli.train_plan import print_plan

        values = choose_settings(values, task.open_known_corpus(values), say)
        print_plan(arguments.experiment, values, arguments.device_memory)
        return
    if arguments.device_memory:
        raise UserError("--device-memory goes with --plan.")
    if not values["output"]:
        raise UserError("--output DIR is required: the folder of the model.")
    values = keep_settings(values)
    kind = data_kind(values)
    # Errors in files are found before TensorFlow is loaded.
    vocabulary = load_vocabulary(values["vocabulary"])
    corpora = task.open_corpora(kind, values)
    values = choose_settings(values, corpora.train, say)
    say("Loading Keras and its backend.")
    # XLA fuses small operations itself, so the default is one stream.
    values["streams"] = load_backend_in_streams(
        values["streams"] or (1 if values["jit_compile"] else None), TRAINING_STREAMS
    )
    from keras_transformer.training import train

    with training_progress(values["output"], values["max_minutes"]) as progress:
        result = train(
            values["output"],
            corpora.train,
            corpora.valid,
            training_settings(values),
            source_tokenizer=vocabulary or corpora.source_tokenizer,
            target_tokenizer=corpora.target_tokenizer,
            report=say,
            progress=progress.update,
        )
    say(
        f"wrote {values['output']}: {result.steps:,} steps, {result.epochs:.1f} epochs, "
        f"{result.minutes:.1f} minutes"
    )


def training_progress(output: str, max_minutes: float | None) -> Progress:
    """Returns a training's progress bar; `max_minutes` includes the minutes of earlier runs."""
    from keras_transformer.training.checkpoints import Checkpoints
    from keras_transformer.training.checkpoints import Progress as Reached
    from keras_transformer.training.output_directory import CHECKPOINT_FOLDER

    if max_minutes is not None:
        state = Checkpoints(pathlib.Path(output, CHECKPOINT_FOLDER)).metadata() or {}
        # Progress needs a time above 0.
        max_minutes = max(max_minutes - Reached.from_dict(state).minutes, 1e-9)
    return Progress("training", unit="steps", minutes=max_minutes)


def _print_config(values: Mapping[str, Any]) -> None:
    corpus = get_task(values["task"]).open_known_corpus(values)
    if corpus is not None:
        values = choose_settings(values, corpus, say)
    examples = choose_settings(values, None, lambda line: None)  # for settings that are still None
    preset = get_preset(examples["preset"])
    model = {name: one.default for name, one in declarations(TransformerConfig).items()}
    model |= {**preset.config, **preset.recipe.to_dict(), "vocab_size": TrainingSettings.vocab_size}
    chosen = {name: value for name, value in examples.items() if value is not None}
    sys.stdout.write(render_config(values, model | chosen))
