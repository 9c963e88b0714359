"""`keras-transformer train`: from sentence pairs to a model directory, resumed if it exists."""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import add_command, positive_float
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.corpus_defaults import choose_settings, keep_settings
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.recipes import RECIPES
from keras_transformer.cli.train_config import render_config, resolve
from keras_transformer.cli.train_data import (
    data_kind,
    dataset_corpora,
    file_corpora,
    known_pairs,
    load_prepared,
)
from keras_transformer.cli.train_settings import GROUPS, SETTINGS
from keras_transformer.cli.vocab import DEFAULT_VOCAB_SIZE, load_vocabulary
from keras_transformer.errors import UserError
from keras_transformer.parsing.cli.settings import check_task, linearization_fields

_DESCRIPTION = """
Trains a Transformer on sentence pairs and writes a model directory: config, weights, tokenizer,
recipe, checkpoints and history. The weights are the average of the last N checkpoints, or a better
single one by BLEU on the validation text. With --task parsing it learns constituency trees from
--trees, and F1 takes the place of BLEU. Stopped at any moment and started again with the same
--output, it goes on from the last checkpoint; --max-steps and --max-minutes may then be raised.
Ctrl-C, SIGTERM and SIGHUP finish the step and write a checkpoint first; a second one stops at once.

The pairs come from two text files (--source, --target), from one TSV file (--tsv), from
tensorflow-datasets (--dataset), each with its validation pairs, or from what
`keras-transformer prepare` has encoded before (--prepared). Settings can also be kept in a TOML
file (--config), which `--print-config` writes with a comment for each; options on the command line
win over it. A model and its recipe go by name (--preset). Without one, the number of training
pairs decides model, vocabulary, batch, steps and the steps between validations, and what was chosen
is printed with the reason.
"""

# The one that argparse makes lists fifty options.
_USAGE = """keras-transformer train --output DIR [--preset NAME] [options]
          --source FILE --target FILE --valid-source FILE --valid-target FILE
        | --tsv FILE --valid-tsv FILE
        | --dataset NAME --source-language CODE --target-language CODE
        | --prepared DIR
        | --task parsing --trees FILE --valid-trees FILE
        | --recipe NAME
        | --config FILE"""

_EXAMPLE = """
keras-transformer train --source train.en --target train.de \\
    --valid-source valid.en --valid-target valid.de --preset tiny --output runs/en-de
keras-transformer train --dataset wmt14_translate/de-en --source-language en \\
    --target-language de --preset small --output runs/wmt14-small
keras-transformer train --recipe wmt14-en-de-base --gpus 8 --mixed-precision --plan
keras-transformer train --task parsing --trees train.trees --valid-trees dev.trees \\
    --output runs/parser
keras-transformer train --print-config --preset tiny > settings.toml
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(
        commands, "train", "train a model, or go on training it", _DESCRIPTION, _EXAMPLE
    )
    parser.usage = _USAGE
    recipes = parser.add_argument_group("recipes: built-in settings", _recipe_list())
    recipes.add_argument(
        "--recipe",
        choices=tuple(RECIPES),
        metavar="NAME",
        help="train as this recipe says; --config and options on the command line win over it",
    )
    plan = parser.add_argument_group("plan")
    plan.add_argument(
        "--plan",
        action="store_true",
        help="print what would run, its memory and its time, and stop: the pairs are only counted; "
        "a few steps of the model are measured",
    )
    plan.add_argument(
        "--device-memory",
        type=positive_float,
        metavar="GB",
        help="with --plan: say whether a step fits into so much memory of each device",
    )
    config = parser.add_argument_group("settings in a file")
    config.add_argument("--config", metavar="FILE", help="TOML file with any of these settings")
    config.add_argument(
        "--print-config",
        action="store_true",
        help="print such a file, with every setting and a comment for each, and stop",
    )
    for heading, settings in GROUPS.values():
        group = parser.add_argument_group(heading)
        for setting in settings:
            setting.add_to(group)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Trains.

    Args:
        arguments: parsed arguments.
    """
    values = resolve(arguments)
    if arguments.print_config:
        _print_config(values)
        return
    check_task(values, SETTINGS)
    if arguments.plan:
        values = choose_settings(values, known_pairs(values), say)
        _plan(arguments.recipe, values, arguments.device_memory)
        return
    if arguments.device_memory:
        raise UserError("--device-memory goes with --plan.")
    if not values["output"]:
        raise UserError("--output DIR is required: where the model goes.")
    values = keep_settings(values)
    kind = data_kind(values)
    # What can be wrong with files is found before TensorFlow is loaded.
    corpora = file_corpora(kind, values) if kind in ("source", "tsv", "trees") else None
    vocabulary = load_vocabulary(values["vocabulary"]) if values["vocabulary"] else None
    if corpora:
        values = choose_settings(values, corpora[0], say)
    target_vocabulary = None
    if kind == "prepared":
        prepared = load_prepared(values)
        vocabulary, target_vocabulary = prepared.source_tokenizer, prepared.target_tokenizer
    say("Loading Keras and its backend.")
    load_backend()
    if values["preset"]:
        _check_preset(values["preset"])
    from keras_transformer.training import train

    if kind == "prepared":
        corpora = prepared.read("train"), prepared.valid_text
    train_corpus, valid_corpus = corpora or dataset_corpora(values)
    values = choose_settings(values, train_corpus, say)  # What was chosen from files stays.
    with training_progress(values["output"], values["max_minutes"]) as progress:
        result = train(
            values["output"],
            train_corpus,
            valid_corpus,
            _training_settings(values),
            source_tokenizer=vocabulary,
            target_tokenizer=target_vocabulary,
            report=say,
            progress=progress.update,
        )
    say(
        f"wrote {values['output']}: {result.steps:,} steps, {result.epochs:.1f} epochs, "
        f"{result.minutes:.1f} minutes"
    )


def training_progress(output: str, max_minutes: float | None) -> Progress:
    """Makes the bar of a training.

    Args:
        output: model directory; the minutes of earlier runs there count.
        max_minutes: minutes over all runs, or `None` for no limit.

    Returns:
        `Progress`.
    """
    from keras_transformer.training import Checkpoints
    from keras_transformer.training.output_directory import CHECKPOINT_FOLDER
    from keras_transformer.training.progress import Progress as Reached

    if max_minutes is not None:
        state = Checkpoints(pathlib.Path(output, CHECKPOINT_FOLDER)).metadata() or {}
        # A bar of no time at all is full at once.
        max_minutes = max(max_minutes - Reached.from_dict(state).minutes, 1e-9)
    return Progress("training", unit="steps", minutes=max_minutes)


def _print_config(values: Mapping[str, Any]) -> None:
    corpus = known_pairs(values)
    if corpus is not None:
        values = choose_settings(values, corpus, say)
    # Without a corpus, the values of one of middling size stand behind #.
    examples = choose_settings(values, None, lambda line: None)
    load_backend()
    chosen = {name: examples[name] for name, value in values.items() if value is None}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    sys.stdout.write(render_config(values, {**_preset_values(examples["preset"]), **chosen}))


def _recipe_list() -> str:
    width = max(map(len, RECIPES))
    rows = (f"  {recipe.name:<{width}}  {recipe.description}" for recipe in RECIPES.values())
    heading = "The paper's trainings on WMT 2014, and of parsers on trees of your own:"
    return "\n".join((f"{heading}\n", *rows))


def _plan(recipe: str | None, values: Mapping[str, Any], device_memory: float | None) -> None:
    vocabulary = load_vocabulary(values["vocabulary"]) if values["vocabulary"] else None
    load_backend()
    _check_preset(values["preset"])
    from keras_transformer.cli.train_plan import print_plan

    print_plan(recipe, values, _training_settings(values), vocabulary, device_memory)


def _training_settings(values: Mapping[str, Any]):
    from keras_transformer.models import TrainingRecipe, TransformerConfig
    from keras_transformer.training import TrainingSettings

    own = {field.name for field in dataclasses.fields(TrainingSettings)}
    model = {field.name for field in dataclasses.fields(TransformerConfig)} - {"vocab_size"}
    recipe = {field.name for field in dataclasses.fields(TrainingRecipe)} - own
    # The longest sentence is a matter of the recipe; the model's limit follows its positions.
    model -= recipe
    given = {name: value for name, value in values.items() if value is not None}
    kind = given["vocabulary_type"]
    is_parsing = given["task"] == "parsing"
    return TrainingSettings(
        linearization=linearization_fields(values) if is_parsing else {},
        model={name: given[name] for name in given.keys() & model} | _learned_positions(given),
        recipe={name: given[name] for name in given.keys() & recipe},
        tokenizer=kind,
        vocab_size=given.get("vocab_size", None if kind == "subword" else DEFAULT_VOCAB_SIZE),
        **{name: given[name] for name in given.keys() & own - {"vocab_size"}},
    )


def _learned_positions(given: Mapping[str, Any]) -> dict[str, int]:
    """How many positions are learned, if they are: as many as the longest sentence needs."""
    from keras_transformer.models import get_preset

    _check_preset(given["preset"])
    preset = get_preset(given["preset"])
    position = given.get("position", preset.config.get("position"))
    if position != "learned" or not given.keys() & {"position", "max_length"}:
        return {}
    return {"max_length": given.get("max_length", preset.recipe.max_length)}


def _check_preset(name: str) -> None:
    from keras_transformer.models import list_presets

    if name not in list_presets():
        known = [preset for preset in list_presets() if not preset.startswith("table3")]
        raise UserError(
            f"--preset must be one of {', '.join(sorted(known))} or table3_... Received: {name!r}"
        )


def _preset_values(name: str) -> dict[str, Any]:
    """What a preset gives to the settings that nobody set."""
    from keras_transformer.models import TransformerConfig, get_preset

    _check_preset(name)
    preset = get_preset(name)
    model = TransformerConfig(vocab_size=1, **preset.config).to_dict()
    return {**model, **preset.recipe.to_dict(), "vocab_size": DEFAULT_VOCAB_SIZE}
