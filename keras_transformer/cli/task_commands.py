"""`TaskCommands`: the interface between the command line and a task."""

import abc
import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from keras_transformer.settings.setting import FrozenSettings
from keras_transformer.settings.training_settings import TrainingSettings


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A published training by name: its data set, languages, preset and steps.

    Args:
        name: The value of `--recipe`.
        description: A few words for the help.
        data: Settings of the data set, which the user's own data replaces.
        values: The other settings. A TOML file and options on the command line win over both.
    """

    name: str
    description: str
    data: Mapping[str, Any]
    values: Mapping[str, Any]


class Corpora(NamedTuple):
    """The data of a training, with tokenizers if the data has ids already."""

    train: Any
    valid: Any
    source_tokenizer: Any = None
    target_tokenizer: Any = None


class TaskCommands(abc.ABC):
    """The commands, options and data of a task; a subclass for each task.

    Attributes:
        name: Name of the task.
        learns_from: The data of the task in a few words.
        missing_data: The options that `train` takes data from, as a sentence.
        modules: Modules of the task's own commands, in the form of `cli/average.py`.
        settings: Settings of `train` that only this task has.
        own_settings: Names of further settings that make sense in this task only.
        tables: Headings of the task's own tables of settings.
        defaults: Defaults of `train` that differ in this task.
        experiments: Values of `--recipe`.
        data_kinds: For each kind of data the settings that it needs.
        slow_kinds: Those that are opened after the backend has been loaded.
        evaluate_options: Options of `evaluate` that make sense in this task only.
        model_options: Those among them that need `--model`.
        evaluate_inputs: Names of their values that are files to read.
        evaluate_outputs: Names of their values that are files to write.
    """

    name: ClassVar[str]
    learns_from: ClassVar[str]
    missing_data: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    settings: ClassVar[type[FrozenSettings]]
    own_settings: ClassVar[tuple[str, ...]] = ()
    tables: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    experiments: ClassVar[tuple[Experiment, ...]] = ()
    data_kinds: ClassVar[Mapping[str, tuple[str, ...]]]
    slow_kinds: ClassVar[tuple[str, ...]] = ()
    evaluate_options: ClassVar[tuple[str, ...]] = ()
    model_options: ClassVar[tuple[str, ...]] = ()
    evaluate_inputs: ClassVar[tuple[str, ...]] = ()
    evaluate_outputs: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        """Opens the data of `train`, of a kind in `data_kinds`.

        What the data decides is written into `values`, the settings by name.
        """

    def open_known_corpus(self, values: Mapping[str, Any]) -> Any:
        """Returns the training corpus, for its length, if it is in files; otherwise None."""
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
        """Estimates the number of target tokens for a plan; returns it with words on both sides.

        It is None if the source has the same tokens. `size` is their number in the source, and
        `vocabulary` the tokenizer that the training is given, or None.
        """

    @abc.abstractmethod
    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the `evaluate_options` of the task."""

    @abc.abstractmethod
    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Evaluates a model or answers that exist, prints the scores and returns a report."""
