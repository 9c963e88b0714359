"""The registry of tasks: what models are trained for, and the code that knows how."""

import abc
import functools
import importlib
from collections.abc import Callable
from typing import Any, ClassVar


class Task(abc.ABC):
    """Base of tasks: the interface that `train`, model directories and exports use.

    Attributes:
        name: the task's name in settings and files.
        pipeline: the class of the models in use, a `Pipeline`.
        command: the subcommand that uses such a model.
        score_name: name of the score on the validation set, as a key.
        score_label: the same for people.
        result_name: field of `TrainingResult` that holds the trained pipeline.
        served_functions: module and class of the `ServedFunctions` of a SavedModel.
        own_settings: names of `TrainingSettings` that need this task.
        shares_a_given_tokenizer: whether one given tokenizer serves source and target.
        needs_own_search: whether the answers need the pipeline's own search, so that programs with
            another search cannot use the model.
    """

    name: ClassVar[str]
    command: ClassVar[str]
    score_name: ClassVar[str]
    score_label: ClassVar[str]
    result_name: ClassVar[str]
    served_functions: ClassVar[str]
    own_settings: ClassVar[tuple[str, ...]] = ()
    shares_a_given_tokenizer: ClassVar[bool] = True
    needs_own_search: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def pipeline(self) -> type:
        """Returns the class, imported when it is asked for."""

    def check_settings(self, settings) -> dict[str, Any]:
        """Checks the settings. Returns a dict of the settings that the task overrides.

        Raises a `ValueError` if a setting is for another task.
        """
        return {}

    @abc.abstractmethod
    def check(self, corpus, settings) -> None:
        """Raises an error if the task cannot be learned from a corpus as the settings say."""

    @abc.abstractmethod
    def learn_tokenizers(self, corpus, settings, source, report: Callable[[str], object]):
        """Returns the `TokenizerPair` of a training corpus.

        `source` is the tokenizer of the source if it is given and not shared, otherwise None;
        `report` is called with lines for people.
        """

    @abc.abstractmethod
    def make_score(self, corpus, tokenizers, settings, recipe):
        """Returns the `ScoreOnDev` of a validation corpus, or None if the settings want none."""

    @abc.abstractmethod
    def make_result(self, model, tokenizers, settings, recipe, sentence_profile):
        """Returns the pipeline of a trained model."""

    def check_served(self, pipeline) -> None:  # noqa: B027
        """Raises a `UserError` if a pipeline cannot become a SavedModel."""


# Strings, because a task imports the packages that look it up here.
_ENTRIES: dict[str, str] = {
    "translation": "keras_transformer.training.translation_task.TranslationTask",
    "parsing": "keras_transformer.parsing.task.ParsingTask",
}
# The `TaskCommands` of each task, which can be imported without Keras.
_COMMANDS: dict[str, str] = {
    "translation": "keras_transformer.cli.translation.TranslationCommands",
    "parsing": "keras_transformer.parsing.cli.command_line.ParsingCommands",
}


def register_task(name: str, entry: str, commands: str | None = None) -> None:
    """Adds a task: the module and class of the `Task`, `"package.module.Class"`.

    `commands` are those of its `TaskCommands`; None for a task without a command line.
    """
    _ENTRIES[name] = entry
    if commands is not None:
        _COMMANDS[name] = commands
    get_task.cache_clear()


def task_names() -> tuple[str, ...]:
    """Returns the names of all tasks."""
    return tuple(_ENTRIES)


@functools.cache
def get_task(name: str) -> Any:
    """Returns the `Task` of a name; raises a `ValueError` if there is none."""
    if name not in _ENTRIES:
        raise ValueError(f"`task` must be one of {task_names()}. Received: task={name!r}")
    return load_entry(_ENTRIES[name])()


def load_entry(entry: str) -> Any:
    """Returns the object of an entry, `"package.module.name"`."""
    module, _, name = entry.rpartition(".")
    return getattr(importlib.import_module(module), name)


def command_names() -> tuple[str, ...]:
    """Returns the names of the tasks that the command line offers."""
    return tuple(_COMMANDS)


def get_commands(name: str) -> Any:
    """Returns the `TaskCommands` of a task."""
    return load_entry(_COMMANDS[name])()
