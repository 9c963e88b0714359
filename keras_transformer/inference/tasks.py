"""The registry of tasks: what models are trained for, and the code that knows how."""

import abc
import functools
import importlib
from collections.abc import Callable
from typing import Any, ClassVar


class Task(abc.ABC):
    """Base of tasks: the interface that `train`, model directories and exports use."""

    name: ClassVar[str]  # in settings and files
    command: ClassVar[str]  # the subcommand that uses such a model
    score_name: ClassVar[str]  # of the score on the validation set, as a key
    score_label: ClassVar[str]  # the same for people
    result_name: ClassVar[str]  # field of `TrainingResult` that holds the trained pipeline
    served_functions: ClassVar[str]  # module and class of the SavedModel's `ServedFunctions`
    own_settings: ClassVar[tuple[str, ...]] = ()  # names of `TrainingSettings` that need this task
    shares_a_given_tokenizer: ClassVar[bool] = True  # whether one serves source and target
    # Whether programs with another search than the pipeline's own cannot use the model.
    needs_own_search: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def pipeline(self) -> type:
        """Returns the class of the models in use, a `Pipeline`, imported when it is asked for."""

    def check_settings(self, settings) -> dict[str, Any]:
        """Checks the settings, and returns those that the task overrides."""
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
    """Adds a task, by `"package.module.Class"` of its `Task` and, if any, its `TaskCommands`."""
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
