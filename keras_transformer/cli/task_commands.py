"""`TaskCommands`: what the command line knows of a task."""

import argparse
import functools
import itertools
import pkgutil
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from keras_transformer.cli.arguments import Option, options_of
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import Task
from keras_transformer.settings.base import Settings


class Corpora(NamedTuple):
    """The data of a training, with tokenizers if the data is already encoded."""

    train: Any
    valid: Any
    source_tokenizer: Any = None
    target_tokenizer: Any = None
    also_valid: Any = None  # further validation sets, by name


class TaskCommands:
    """The options and the data of a task on the command line.

    This class is for tasks that are trained in Python only.
    """

    learns_from: ClassVar[str] = ""  # the data of the task in a few words
    commands: ClassVar[Mapping[str, str]] = {}  # modules of its commands, see `cli/application.py`
    data: ClassVar[type[Settings]] = Settings  # options of `train` for its data
    # Tables of `train` with its data and with the settings of the task, and headings of new ones.
    data_table: ClassVar[str] = "data"
    settings_table: ClassVar[str] = "checkpoints"
    headings: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}  # defaults of `train` that differ in this task
    not_here: ClassVar[tuple[str, ...]] = ()  # options of `train` for other tasks
    # Groups of options of each kind of data: first those that it needs, then groups that are given
    # together or not at all.
    data_kinds: ClassVar[Mapping[str, tuple[tuple[str, ...], ...]]] = {}
    missing_data: ClassVar[str] = "Models of this task are trained in Python."  # without data
    model_options: ClassVar[tuple[str, ...]] = ()  # options of `evaluate` that need `--model`
    evaluate_inputs: ClassVar[tuple[str, ...]] = ()  # options of `evaluate` with files to read
    evaluate_outputs: ClassVar[tuple[str, ...]] = ()  # options of `evaluate` with files to write
    # Options of `evaluate` that take a validation file, with the option of `train` that names it.
    valid_files: ClassVar[Mapping[str, str]] = {}
    # The same for options that decide how the validation is scored.
    score_options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, task: Task):
        self.task = task

    def options(self) -> dict[str, Option]:
        """Returns the options of `train` that the task brings, by name."""
        return {**options_of(self.data), **options_of(self.task.settings)}

    def data_kind(self, values: Mapping[str, Any]) -> str:
        """Returns the kind of data that the settings of `train` name, a key of `data_kinds`."""
        given = {
            kind: [_flag(name) for name in itertools.chain(*groups) if values[name]]
            for kind, groups in self.data_kinds.items()
        }
        received = dict.fromkeys(itertools.chain(*given.values()))
        # Two kinds share an option such as --valid-source.
        kind = max(given, key=lambda kind: len(given[kind]), default="")
        if not received or set(given[kind]) != set(received):
            names = ", ".join(received) or "none of them"
            complete = [
                groups for groups in self.data_kinds.values() if all(map(values.get, groups[0]))
            ]
            if len(complete) == 1:
                first, *others = map(_flag, itertools.chain(*complete[0]))
                raise UserError(f"{first} goes with {', '.join(others)}. Received: {names}")
            raise UserError(f"{self.missing_data} Received: {names}")
        needed, *others = self.data_kinds[kind]
        for group in others:
            needed += group if any(values[name] for name in group) else ()
        if missing := [_flag(name) for name in needed if not values[name]]:
            raise UserError(f"{given[kind][0]} also needs {' and '.join(missing)}.")
        return kind

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        """Opens the data of `train`; writes the settings that the data decides into `values`.

        `kind` is a key of `data_kinds`.
        """
        raise NotImplementedError

    def open_known_corpus(self, values: Mapping[str, Any]) -> Any:
        """Returns the training corpus if it is in files that exist; otherwise None."""
        return None

    def describe_data(self, values: Mapping[str, Any]) -> str:
        """Returns the data of a plan in a few words, `""` if none is given."""
        return ""

    def task_settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of the task that its options of data decide."""
        return {}

    def plan_vocabulary(self, settings, size: int, vocabulary: Any) -> tuple[int | None, str]:
        """Returns the estimated size of the target vocabulary, None if shared, and a description.

        `size` is that of the source's vocabulary; `vocabulary` is a given tokenizer, or None.
        """
        if settings.shared_vocabulary or vocabulary is not None:
            return None, "for both languages"
        return size, "for each language"

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options of `evaluate` that only this task has."""

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Evaluates a model or existing answers, prints the scores and returns a report."""
        raise UserError(f"`evaluate` cannot score this task. Received: task={self.task.name!r}")


def _flag(name):
    return "--" + name.replace("_", "-")


@functools.cache
def commands_of(task: Task) -> TaskCommands:
    """Returns the commands of a task."""
    return pkgutil.resolve_name(task.commands)(task)
