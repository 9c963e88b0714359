"""The settings of `train`: from options, a TOML file, an experiment or the defaults."""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.cli.arguments import TRAINING_STREAMS, add_setting
from keras_transformer.errors import UserError, did_you_mean, one_line
from keras_transformer.files import read_small_file, require_file
from keras_transformer.inference.tasks import all_tasks, get_task
from keras_transformer.settings.presets import TrainingRecipe, get_preset, list_presets
from keras_transformer.settings.setting import Rule, Setting, choice, declarations, declare_options
from keras_transformer.settings.training_settings import (
    BLEU_TOKENIZERS,
    TrainingSettings,
    read_settings_file,
)
from keras_transformer.settings.transformer_config import TransformerConfig

# Settings that depend on the number of training pairs, each with the reason for its value.
CHOSEN: dict[str, str] = {
    "preset": "small for little text, base for much",
    "num_encoder_layers": "fewer layers learn faster from little text",
    "num_decoder_layers": "fewer layers learn faster from little text",
    "dropout": "less text needs more dropout against overfitting",
    "vocab_size": "small enough that each subword occurs often",
    "tokens_per_batch": "small enough for many steps in an epoch",
    "warmup_steps": "a small share of the steps",
    "max_steps": "enough for this size; --patience may end the training sooner",
    "evaluate_every": "validation takes less time than training",
    "checkpoint_every": "far enough apart that averaging the checkpoints helps",
    "patience": "stop after this many validations without improvement",
}
# Maximum number of training pairs, and the values of the settings in the order of `CHOSEN`.
_BY_PAIRS = (
    (5_000, ("small", 2, 2, 0.3, 1_000, 1_024, 400, 4_000, 200, 100, 5)),
    (20_000, ("small", 2, 2, 0.2, 2_000, 1_024, 400, 12_000, 400, 100, 8)),
    (60_000, ("small", 2, 2, 0.2, 4_000, 1_024, 400, 20_000, 500, 100, 10)),
    (500_000, ("small", 3, 3, 0.2, 8_000, 4_096, 1_000, 40_000, 1_000, 500, 10)),
    (float("inf"), ("base", 6, 6, 0.1, 32_000, 25_000, 4_000, 100_000, 3_000, 1_500, 10)),
)
_ASSUMED_PAIRS = 100_000  # without a corpus, as for a plan or a TOML file
_CHARACTER_PAIRS = 100_000
_RESERVED_PIECES = 260  # 4 special ids and 256 bytes
# Maximum number of bytes of a TOML file; `tomllib` reads `a.b.c` in quadratic time and memory.
_LARGEST_CONFIG = 2**15


def train_tables() -> dict[str, str]:
    """Returns the tables of the TOML file, with the headings of the help."""
    return {
        "data": "sentence pairs: two text files, one TSV file, or a dataset by name",
        **{table: text for task in all_tasks() for table, text in task.tables.items()},
        "vocabulary": "vocabulary of subwords, learned from the training text",
        "model": "model",
        "training": "training hyper-parameters",
        "checkpoints": "checkpoints and validation",
        "search": "search of the finished model",
        "machine": "machine and output",
    }


def train_options() -> dict[str, Setting]:
    """Returns the settings of `train` by name, those of all tasks included."""
    return _options_of_tasks(tuple(all_tasks()))


@functools.cache
def _options_of_tasks(tasks):
    declared = [*declarations(TrainingSettings).values()]
    declared += [option for task in tasks for option in task.options]
    # Arguments of the function `train`.
    text = "file of `keras-transformer vocab` with the vocabulary; in parsing, of the words; None "
    declared += declare_options("vocabulary", {"vocabulary FILE": text + "for a new one"})
    text = "model directory; if it contains a training already, that training is resumed"
    declared += declare_options("machine", {"output DIR": text})
    options = {option.name: option for option in declared}
    # Defaults that differ from the library's, because the command line knows the number of pairs.
    presets = [f"with --task {task.name} {task.defaults['preset']}"
               for task in tasks if "preset" in task.defaults]  # fmt: skip
    adapted = (
        "with --start-from the model's own, at a learning rate of 0.1 / d_model after 200 steps"
    )
    named = sorted(name for name in list_presets() if not name.startswith("table3"))
    words = f"one of {', '.join(named)} or table3_..."
    names = " or ".join(f"{task.name}, from {task.learns_from}" for task in tasks)
    changes: dict[str, dict[str, Any]] = {
        "preset": {
            "default": None,
            "unset": "; ".join(["by the number of pairs", *presets, adapted]),
            "rule": Rule(str, words, list_presets().__contains__, "NAME"),
        },
        "vocab_size": {"default": None, "unset": f"{TrainingSettings.vocab_size}"},
        "task": {
            "text": f"task of the model: {names}",
            "rule": choice("TASK", *(task.name for task in tasks)),
        },
        "bleu_tokenize": {"rule": choice("NAME", *BLEU_TOKENIZERS)},
        "streams": {
            "default": None,
            "unset": f"{TRAINING_STREAMS} with TensorFlow on a CPU of several cores; 1 with XLA, "
            "on a GPU and with other backends",
        },
    }
    for name, change in changes.items():
        options[name] = dataclasses.replace(options[name], **change)
    for kind in (TransformerConfig, TrainingRecipe):
        for option in declarations(kind).values():
            if option.table:
                changed = dataclasses.replace(option, default=None, unset="the preset's")
                options[option.name] = changed
    for name in CHOSEN.keys() - {"preset"}:
        unset = f"by the number of pairs; with --preset {options[name].unset}"
        options[name] = dataclasses.replace(options[name], unset=unset)
    return {name: option for name, option in options.items() if option.table}


def options_in(table: str) -> list[Setting]:
    return [option for option in train_options().values() if option.table == table]


def add_tables(parser, tables=None, left_out=()) -> None:
    """Adds a group of options for each table, without `left_out`; None for all tables."""
    for table, heading in train_tables().items():
        if tables is None or table in tables:
            group = parser.add_argument_group(heading)
            for option in options_in(table):
                if option.name not in left_out:
                    add_setting(group, option)


def read_config(path: str) -> dict[str, Any]:
    """Returns the settings in a TOML file by name, or raises a `UserError`."""
    file = require_file(path)
    try:
        tables = tomllib.loads(read_small_file(file, _LARGEST_CONFIG).decode("utf-8"))
    # As in JSON: text that is not UTF-8, numbers of thousands of digits, deep nesting.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a valid TOML file: {one_line(error)}") from error
    values: dict[str, Any] = {}
    known, allowed = train_options(), train_tables()
    for table, entries in tables.items():
        if table not in allowed or not isinstance(entries, Mapping):
            names = ", ".join(f"[{name}]" for name in allowed)
            rule = f"every setting stands in one of the tables {names}"
            raise UserError(f"{path}: {rule}. Received: {table!r}")
        for name, value in entries.items():
            if name not in known or known[name].table != table:
                raise UserError(f"{path}: {_describe_unknown(name, table)}")
            rule = known[name].rule
            values[name] = rule.convert(value)
            if not rule.allows(values[name]):
                words = "true or false" if rule.kind is bool else rule.words
                raise UserError(f"{path}: {name} must be {words}. Received: {value!r}")
    return values


def _describe_unknown(name, table):
    if name in (known := train_options()):
        return f"{name} belongs in [{known[name].table}]. Received: it in [{table}]"
    names = [option.name for option in options_in(table)]
    hint = did_you_mean(name, names) or f"; known: {', '.join(names)}"
    return f"unknown setting in [{table}]{hint}. Received: {name!r}"


def all_experiments() -> dict[str, pathlib.Path]:
    """Returns the TOML files of the experiments of all tasks by name."""
    return {name: path for task in all_tasks() for name, path in task.experiments.items()}


def describe_experiment(name: str) -> str:
    """Returns the comment in the first line of an experiment's file."""
    with open(all_experiments()[name], encoding="utf-8") as file:
        return file.readline().strip("#. \n")


def _read_experiment(name, given):
    """Returns an experiment's settings; other data that is given replaces its own."""
    values, known = read_config(str(all_experiments()[name])), train_options()
    task = get_task(values.get("task", known["task"].default))
    if given.get("task", task.name) != task.name:
        rule = f"--experiment {name} is for --task {task.name}"
        raise UserError(f"{rule}. Received: task={given['task']!r}")
    other_kinds = [names for kind, names in task.data_kinds.items() if kind not in values]
    if any(map(given.get, itertools.chain(*other_kinds))):
        values = {key: value for key, value in values.items() if known[key].table != "data"}
        values["task"] = task.name
    if given.get("prepared"):  # It brings a vocabulary.
        del values["vocab_size"]
    return values


def resolve(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns all settings: from options, else the TOML file, the experiment or the defaults."""
    values = {name: option.default for name, option in train_options().items()}
    options = {name: value for name, value in vars(arguments).items() if value is not None}
    given = read_config(options["config"]) if options.get("config") else {}
    given |= {name: options[name] for name in values if name in options}
    named = _read_experiment(options["experiment"], given) if "experiment" in options else {}
    task = (named | given).get("task", values["task"])
    return {**values, **get_task(task).defaults, **named, **given}


def keep_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings; unset ones get the values of the training to resume, if any."""
    try:
        saved = read_settings_file(values["output"])["settings"]
        saved = {**saved, **saved["model"], **saved["recipe"]}
    except (ValueError, LookupError, TypeError):
        return dict(values)  # the training itself reports damage
    return {**values, **{name: saved.get(name) for name in _unset(values)}}


def choose_settings(values: Mapping[str, Any], corpus, say) -> dict[str, Any]:
    """Returns the settings; unset ones get values for this number of training pairs.

    With a named preset, nothing changes. `corpus` has a length; None if the corpus is not known.
    """
    if values["preset"]:
        return dict(values)
    row = _row(corpus)
    chosen = {name: row[name] for name in _unset(values)}
    if corpus is None:
        say(f"The number of training pairs is not known. Defaults for {_ASSUMED_PAIRS:,} pairs:")
    else:
        if "vocab_size" in chosen:
            chosen["vocab_size"] = choose_vocab_size(corpus)
        say(f"Defaults for {len(corpus):,} training pairs:")
    for name, value in chosen.items():
        say(f"  --{name.replace('_', '-')} {value}: {CHOSEN[name]}")
    return {**values, **chosen}


def choose_vocab_size(corpus: Iterable[tuple[str, str]]) -> int:
    """Returns the vocabulary size for a corpus, which has a length."""
    # Scripts with many characters need more subwords, because each character is one.
    characters: set[str] = set()
    for source, target in itertools.islice(corpus, _CHARACTER_PAIRS):
        characters.update(source, target)
    return max(_row(corpus)["vocab_size"], _RESERVED_PIECES + 2 * len(characters))


def _row(corpus):
    num_pairs = _ASSUMED_PAIRS if corpus is None else len(corpus)
    row = next(row for maximum, row in _BY_PAIRS if num_pairs <= maximum)
    return dict(zip(CHOSEN, row, strict=True))


def _unset(values):
    """Returns the settings to choose; none if a preset is named."""
    if values["preset"]:
        return []
    known: tuple[str, ...] = ()
    if values["start_from"]:
        known = ("preset", "num_encoder_layers", "num_decoder_layers", "dropout", "vocab_size")
        known += ("warmup_steps",)
    elif values["vocabulary"] or values["prepared"] or values["vocabulary_type"] == "subword":
        known = ("vocab_size",)
    return [name for name in CHOSEN if values[name] is None and name not in known]


def check_task(values: Mapping[str, Any]) -> None:
    """Raises a `UserError` if a setting of another task has been given."""

    def settings_of(task):
        return {*task.settings, *(option.name for option in task.options)}

    task, known = get_task(values["task"]), train_options()
    for other in all_tasks():
        foreign = settings_of(other) - settings_of(task)
        for name in filter(foreign.__contains__, known):  # in the order of the options
            if values[name] != task.defaults.get(name, known[name].default):
                rule = f"{known[name].flag} goes with --task {other.name}"
                raise UserError(f"{rule}. Received: task={task.name!r}")


def data_kind(values: Mapping[str, Any]) -> str:
    """Returns the kind of data that the settings name, a key of `Task.data_kinds`."""
    task, known = get_task(values["task"]), train_options()
    groups = {kind: (n, *task.more_data.get(kind, ())) for kind, n in task.data_kinds.items()}
    flags = {
        kind: [known[name].flag for name in itertools.chain(*groups[kind]) if values[name]]
        for kind in groups
    }
    received = dict.fromkeys(itertools.chain(*flags.values()))
    # Two kinds share an option such as --valid-source.
    kind = max(flags, key=lambda kind: len(flags[kind]))
    if not received or set(flags[kind]) != set(received):
        raise UserError(f"{task.missing_data} Received: {', '.join(received) or 'none of them'}")
    needed = [*groups[kind][0]]
    for group in groups[kind][1:]:
        needed += group if any(values[name] for name in group) else ()
    if missing := [known[name].flag for name in needed if not values[name]]:
        raise UserError(f"{flags[kind][0]} also needs {' and '.join(missing)}.")
    return kind


def render_config(values: Mapping[str, Any], preset_values: Mapping[str, Any]) -> str:
    """Returns a TOML file of all settings; `preset_values` are examples for those that are None."""
    lines = [
        "# Settings of `keras-transformer train --config THIS_FILE`.",
        "# A setting behind # is not set: its value there is the preset's, or an example. Options",
        "# on the command line win. File names are relative to the folder of the command.",
    ]
    for table, heading in train_tables().items():
        lines += ["", f"# {heading[0].upper()}{heading[1:]}.", f"[{table}]"]
        for option in options_in(table):
            lines += ["", f"# {option.text[0].upper()}{option.text[1:]}."]
            name, rule = option.name, option.rule
            if rule.choices:
                lines.append(f"# One of: {', '.join(rule.choices)}.")
            value = preset_values.get(name) if values[name] is None else values[name]
            if value is None:
                number = 30.0 if rule.allows(30.0) else 0.999  # a rate
                several = [*rule.example] or [option.metavar]
                examples = {str: "...", bool: True, float: number, tuple: several}
                value = rule.choices[0] if rule.choices else examples.get(rule.kind, 1)
            start = "# " if values[name] is None else ""
            # Text, numbers and booleans are written as in JSON.
            lines.append(f"{start}{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def training_settings(values: Mapping[str, Any]) -> TrainingSettings:
    """Returns the `TrainingSettings` with the values of settings by name."""
    given = {name: value for name, value in values.items() if value is not None}
    if values["vocabulary_type"] == "subword":
        given["vocab_size"] = values["vocab_size"]

    def fields(kind):
        return {
            field: given[option.name]
            for field, option in declarations(kind).items()
            if option.table and option.name in given
        }

    model, recipe = fields(TransformerConfig), fields(TrainingRecipe)
    preset = get_preset(given.get("preset", "base"))
    position = given.get("position", preset.config.get("position"))
    # There are as many learned positions as the longest sentence needs.
    if position == "learned" and given.keys() & {"position", "max_length"}:
        model["max_length"] = given.get("max_length", preset.recipe.max_length)
    others = fields(TrainingSettings) | get_task(values["task"]).training_fields(values)
    return TrainingSettings(model=model, recipe=recipe, **others)
