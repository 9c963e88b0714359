"""The settings of `train`: from options, a TOML file, an experiment or the defaults."""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, get_args

from keras_transformer.cli.arguments import Option, add_option, options_of
from keras_transformer.cli.backend import TRAINING_STREAMS
from keras_transformer.cli.corpus_defaults import CHOSEN
from keras_transformer.cli.task_commands import TaskCommands, commands_of
from keras_transformer.errors import UserError, did_you_mean, one_line
from keras_transformer.files import read_small_file, require_file
from keras_transformer.inference.tasks import all_tasks, get_task
from keras_transformer.settings.base import (
    File,
    Folder,
    Settings,
    allowed_values,
    check_value,
    choices_of,
    plain_type,
    settings_dataclass,
    settings_fields,
)
from keras_transformer.settings.presets import TrainingRecipe, get_preset
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.settings.transformer_config import TransformerConfig

# Maximum number of bytes of a TOML file; `tomllib` reads `a.b.c` in quadratic time and memory.
_LARGEST_CONFIG = 2**15


@settings_dataclass
class RunOptions(Settings):
    """Arguments of the function `train`, besides its settings and corpora.

    Args:
        vocabulary: File of `keras-transformer vocab` with the vocabulary; in parsing, of the words;
            None for a new one.
        output: Model directory; if it contains a training already, that training is resumed.
    """

    vocabulary: File | None = None
    output: Folder | None = None


class Table(NamedTuple):
    """A table of the TOML file, which is a group of options in the help."""

    heading: str
    options: dict[str, Option]


# The classes whose fields are options, each with the table of its fields. The first class with a
# field has the option: `max_steps` limits the run, as in `TrainingSettings`.
_CLASSES: dict[type[Settings], str] = {
    TrainingSettings: "machine",
    TrainingRecipe: "training",
    TransformerConfig: "model",
    RunOptions: "machine",
}
# Fields in other tables.
_TABLES = {
    "data": ("task", "max_length"),
    "vocabulary": (
        *("tokenizer", "vocab_size", "normalization", "shared_vocabulary", "bpe_dropout"),
        "vocabulary",
    ),
    "model": ("preset", "start_from", "freeze", "lora"),
    "training": ("max_steps", "max_minutes", "seed"),
    "checkpoints": (
        *("evaluate_every", "checkpoint_every", "keep_checkpoints", "patience"),
        *("average_checkpoints", "average_windows", "select_best"),
    ),
    "search": ("beam_size", "length_penalty", "length_normalization"),
}
_HEADINGS = {
    "vocabulary": "vocabulary of subwords, learned from the training text",
    "model": "model",
    "training": "training hyper-parameters",
    "checkpoints": "checkpoints and validation",
    "search": "search of the finished model",
    "machine": "machine and output",
}
# Names of options that differ from those of the fields.
_NAMES = {"tokenizer": "vocabulary_type"}


def all_tables() -> dict[str, Table]:
    """Returns the tables of the TOML file by name, with the options of all tasks."""
    return _tables_of(tuple(map(commands_of, all_tasks())))


def all_options() -> dict[str, Option]:
    """Returns the options of all tables by name."""
    return {name: o for table in all_tables().values() for name, o in table.options.items()}


def _fields_of(settings):
    """Returns the names of options by field of a class; fields of earlier classes are left out."""
    earlier = itertools.takewhile(lambda kind: kind is not settings, _CLASSES)
    # The learned vocabularies decide `target_vocab_size`.
    taken = {"target_vocab_size"}.union(*map(settings_fields, earlier))
    return {
        name: _NAMES.get(name, name)
        for name, field in settings_fields(settings).items()
        if name not in taken and plain_type(field.annotation)[0] != Mapping[str, Any]
    }


@functools.cache
def _tables_of(tasks: tuple[TaskCommands, ...], has_presets: bool = True) -> dict[str, Table]:
    headings = {name: text for task in tasks for name, text in task.headings.items()} | _HEADINGS
    tables = {name: Table(heading, {}) for name, heading in headings.items()}
    table_of = {name: table for table, names in _TABLES.items() for name in names}
    classes = dict(_CLASSES)
    for task in tasks:
        classes |= {task.data: task.data_table, task.task.settings: task.settings_table}
    changes = _changes(tasks)
    for settings, table in classes.items():
        options = options_of(settings)
        for name, option_name in _fields_of(settings).items():
            option = dataclasses.replace(options[name], name=option_name)
            if settings in (TrainingRecipe, TransformerConfig):
                option = dataclasses.replace(option, default=None, unset="the preset's")
            option = dataclasses.replace(option, **changes.get(name, {}))
            if name in CHOSEN and name != "preset":
                with_preset = f"; with --preset {option.unset}" if has_presets else ""
                unset = f"by the number of pairs{with_preset}"
                option = dataclasses.replace(option, unset=unset)
            for task in tasks:
                if option_name in task.defaults.keys() - {"preset", *task.not_here}:
                    value = task.defaults[option_name]
                    text = f"{option.text}; with --task {task.task.name} {value} by default"
                    option = dataclasses.replace(option, text=text)
            tables[table_of.get(name, table)].options[option_name] = option
    return tables


def _changes(tasks) -> dict[str, dict[str, Any]]:
    """Returns what differs from the library, because the command knows tasks and numbers of pairs.

    The changes of an option are by the name of its field.
    """
    presets = [f"with --task {task.task.name} {task.defaults['preset']}"
               for task in tasks if "preset" in task.defaults]  # fmt: skip
    adapted = (
        "with --start-from the model's own, at a learning rate of 0.1 / d_model (with Muon 0.4 / "
        "d_model) after 200 steps"
    )
    learned = " or ".join(f"{task.task.name}, from {task.learns_from}" for task in tasks)
    return {
        "preset": {"unset": "; ".join(["by the number of pairs", *presets, adapted])},
        "vocab_size": {"default": None, "unset": f"{TrainingSettings.vocab_size}, for subword all"},
        "task": {
            "text": f"task of the model: {learned}",
            "type": Literal[tuple(task.task.name for task in tasks)],
        },
        "streams": {
            "default": None,
            "unset": f"{TRAINING_STREAMS} with TensorFlow on a CPU of several cores; 1 with XLA, "
            "on a GPU and with other backends",
        },
    }


def add_tables(parser) -> None:
    """Adds a group of options for each table."""
    for table in all_tables().values():
        _add_table(parser, table)


def add_tables_of_text(parser, left_out: Collection[str]) -> None:
    """Adds the options of the text and vocabulary of translation, without `left_out`."""
    tables = _tables_of((commands_of(get_task("translation")),), has_presets=False)
    for name in ("data", "vocabulary"):
        _add_table(parser, tables[name], left_out)


def _add_table(parser, table, left_out=()):
    group = parser.add_argument_group(table.heading)
    for option in table.options.values():
        if option.name not in left_out:
            add_option(group, option)


def read_config(path: str) -> dict[str, Any]:
    """Returns the settings in a TOML file by name, or raises a `UserError`."""
    file = require_file(path)
    try:
        tables = tomllib.loads(read_small_file(file, _LARGEST_CONFIG).decode("utf-8"))
    # As in JSON: text that is not UTF-8, numbers of thousands of digits, deep nesting.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a valid TOML file: {one_line(error)}") from error
    values: dict[str, Any] = {}
    allowed = all_tables()
    for table, entries in tables.items():
        if table not in allowed or not isinstance(entries, Mapping):
            names = ", ".join(f"[{name}]" for name in allowed)
            rule = f"every setting stands in one of the tables {names}"
            raise UserError(f"{path}: {rule}. Received: {table!r}")
        for name, value in entries.items():
            if name not in allowed[table].options:
                raise UserError(f"{path}: {_describe_unknown(name, table)}")
            kind = allowed[table].options[name].type
            try:
                values[name] = check_value(kind, value)
            except ValueError:
                words = allowed_values(kind).replace("True or False", "true or false")
                rule = f"{path}: {name} must be {words}"
                raise UserError(f"{rule}. Received: {value!r}") from None
    return values


def _describe_unknown(name, table):
    tables = all_tables()
    for other, (_, options) in tables.items():
        if name in options:
            return f"{name} belongs in [{other}]. Received: {name!r} in [{table}]"
    known = tables[table].options
    hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
    return f"unknown setting in [{table}]{hint}. Received: {name!r}"


def all_experiments() -> dict[str, pathlib.Path]:
    """Returns the TOML files of the experiments by name."""
    folder = pathlib.Path(__file__).with_name("experiments")
    return dict(sorted((path.stem, path) for path in folder.glob("*.toml")))


def describe_experiment(name: str) -> str:
    """Returns the comment in the first line of an experiment's file."""
    with open(all_experiments()[name], encoding="utf-8") as file:
        return file.readline().strip("#. \n")


def _read_experiment(name, given):
    """Returns an experiment's settings; other data that is given replaces its own."""
    values, known = read_config(str(all_experiments()[name])), all_options()
    task = get_task(values.get("task", known["task"].default))
    if given.get("task", task.name) != task.name:
        rule = f"--experiment {name} is for --task {task.name}"
        raise UserError(f"{rule}. Received: task={given['task']!r}")
    kinds = commands_of(task).data_kinds.items()
    # A kind of data has the name of one of its options.
    needed = [option for kind, (group, *_) in kinds if kind not in values for option in group]
    if any(map(given.get, needed)):
        of_data = all_tables()["data"].options
        values = {name: value for name, value in values.items() if name not in of_data}
        values["task"] = task.name
    if given.get("prepared"):  # It brings a vocabulary.
        del values["vocab_size"]
    return values


def resolve(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns all settings: from options, else the TOML file, the experiment or the defaults."""
    values = {name: option.default for name, option in all_options().items()}
    options = {name: value for name, value in vars(arguments).items() if value is not None}
    given = read_config(options["config"]) if options.get("config") else {}
    given |= {name: options[name] for name in values if name in options}
    if given.get("vocabulary") and "vocab_size" in options:
        rule = "--vocab-size is for a new vocabulary, and --vocabulary brings one"
        raise UserError(f"{rule}. Received: both")
    named = _read_experiment(options["experiment"], given) if "experiment" in options else {}
    task = (named | given).get("task", values["task"])
    return {**values, **commands_of(get_task(task)).defaults, **named, **given}


def check_task(values: Mapping[str, Any]) -> None:
    """Raises a `UserError` if a setting of another task has been given."""
    task = commands_of(get_task(values["task"]))
    for other in map(commands_of, all_tasks()):
        foreign = other.options().keys() - task.options().keys()
        foreign |= set(task.not_here) - set(other.not_here)
        for name, option in all_options().items():
            if name in foreign and values[name] != task.defaults.get(name, option.default):
                rule = f"{option.flag} goes with --task {other.task.name}"
                raise UserError(f"{rule}. Received: task={task.task.name!r}")


def render_config(values: Mapping[str, Any], preset_values: Mapping[str, Any]) -> str:
    """Returns a TOML file of all settings; `preset_values` are examples for those that are None."""
    lines = [
        "# Settings of `keras-transformer train --config THIS_FILE`.",
        "# A setting that is commented out shows the preset's value, or an example. Options on the",
        "# command line win. File names are relative to the folder of the command.",
    ]
    for table, (heading, options) in all_tables().items():
        lines += ["", f"# {heading[0].upper()}{heading[1:]}.", f"[{table}]"]
        for name, option in options.items():
            lines += ["", f"# {option.text[0].upper()}{option.text[1:]}."]
            if choices := choices_of(option.type):
                lines.append(f"# One of: {', '.join(choices)}.")
            value = preset_values.get(name) if values[name] is None else values[name]
            if value is None:
                value = _example(option.type)
            start = "# " if values[name] is None else ""
            # Text, numbers and booleans are written as in JSON.
            lines.append(f"{start}{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _example(kind):
    """Returns a value of a type, for a setting without a value."""
    if choices := choices_of(kind):
        return choices[0]
    kind, _ = plain_type(kind)
    if items := get_args(kind):  # a tuple
        return [_example(items[0])]
    return {str: "...", bool: True, float: 0.5, int: 1}[kind]


def training_settings(values: Mapping[str, Any]) -> TrainingSettings:
    """Returns the `TrainingSettings` with the values of settings by name."""
    given = {name: value for name, value in values.items() if value is not None}
    if values["vocabulary_type"] == "subword":
        given["vocab_size"] = values["vocab_size"]  # None, too: all subwords.

    def fields(settings):
        names = _fields_of(settings).items()
        return {field: given[name] for field, name in names if name in given}

    model, recipe = fields(TransformerConfig), fields(TrainingRecipe)
    preset = get_preset(given.get("preset", "base"))
    position = given.get("position", preset.config.get("position"))
    # There are as many learned positions as the longest sentence needs.
    if position == "learned" and given.keys() & {"position", "max_length"}:
        model["max_length"] = given.get("max_length", preset.recipe.max_length)
    task = get_task(values["task"])
    task_settings = fields(task.settings) | commands_of(task).task_settings(values)
    settings = fields(TrainingSettings)
    return TrainingSettings(**settings, model=model, recipe=recipe, task_settings=task_settings)
