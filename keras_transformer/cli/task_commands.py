"""`TaskCommands`: the interface between the command line and a task."""

import abc
import argparse
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from keras_transformer.files import read_toml
from keras_transformer.inference.tasks import command_names, get_commands
from keras_transformer.settings.setting import FrozenSettings
from keras_transformer.settings.training_settings import TrainingSettings


class Experiment(NamedTuple):
    """A published training with a name: its data set, languages, preset and steps."""

    name: str  # the value of `--recipe`
    description: str  # a few words for the help
    data: Mapping[str, Any]  # settings of the data set, which the user's own data replaces
    values: Mapping[str, Any]  # the other settings; a TOML file and options override both


def read_experiments(module: str) -> tuple[Experiment, ...]:
    """Returns the experiments in `experiments.toml` beside a module; `module` is its path."""
    content = read_toml(module, "experiments.toml")
    data, values = content.get("data", {}), content["values"]
    return tuple(
        Experiment(name, one["description"], data | one.get("data", {}), values | one["values"])
        for name, one in content["experiments"].items()
    )


class Corpora(NamedTuple):
    """The data of a training, with tokenizers if the data is already encoded."""

    train: Any
    valid: Any
    source_tokenizer: Any = None
    target_tokenizer: Any = None


class TaskCommands(abc.ABC):
    """The commands, options and data of a task; each task has a subclass."""

    name: ClassVar[str]
    learns_from: ClassVar[str]  # the data of the task in a few words
    missing_data: ClassVar[str]  # the options that `train` takes data from, as a sentence
    modules: ClassVar[tuple[str, ...]]  # modules of its own commands, see `cli/application.py`
    settings: ClassVar[type[FrozenSettings]]  # settings of `train` that only this task has
    own_settings: ClassVar[tuple[str, ...]] = ()  # other settings that only this task uses
    tables: ClassVar[Mapping[str, str]] = {}  # its own tables of settings, with headings
    defaults: ClassVar[Mapping[str, Any]] = {}  # defaults of `train` that differ in this task
    experiments: ClassVar[tuple[Experiment, ...]] = ()  # values of `--recipe`
    data_kinds: ClassVar[Mapping[str, tuple[str, ...]]]  # the settings that each kind needs
    evaluate_options: ClassVar[tuple[str, ...]] = ()  # its own options of `evaluate`
    model_options: ClassVar[tuple[str, ...]] = ()  # those of them that need `--model`
    evaluate_inputs: ClassVar[tuple[str, ...]] = ()  # names of the arguments with files to read
    evaluate_outputs: ClassVar[tuple[str, ...]] = ()  # names of the arguments with files to write

    @abc.abstractmethod
    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        """Opens the data of `train`; writes the settings that the data decides into `values`."""

    def open_known_corpus(self, values: Mapping[str, Any]) -> Any:
        """Returns the training corpus if it is in files that exist; otherwise None."""
        return None

    @abc.abstractmethod
    def describe_data(self, values: Mapping[str, Any]) -> str:
        """Returns the data of a plan in a few words, `""` if none is given."""

    def training_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of `TrainingSettings` that the task's own settings decide."""
        return {}

    @abc.abstractmethod
    def plan_vocabulary(
        self, settings: TrainingSettings, size: int, vocabulary: Any
    ) -> tuple[int | None, str]:
        """Returns the estimated size of the target vocabulary, None if shared, and a description.

        `size` is the size of the source's vocabulary; `vocabulary` is the tokenizer that was given
        to the training, or None.
        """

    @abc.abstractmethod
    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the `evaluate_options` of the task."""

    @abc.abstractmethod
    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Evaluates a model or existing answers, prints the scores and returns a report."""


def task_commands() -> list[TaskCommands]:
    """Returns the commands of all tasks."""
    return [get_commands(name) for name in command_names()]
