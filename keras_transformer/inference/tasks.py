"""Registry of the tasks that models are trained for."""

import abc
import functools
import importlib
from collections.abc import Callable
from typing import Any, ClassVar


class Task(abc.ABC):
    """Base class of tasks: the interface that `train`, model directories and exports use."""

    name: ClassVar[str]  # name in settings and files
    command: ClassVar[str]  # the subcommand that uses such a model
    score_name: ClassVar[str]  # key of the score on the validation set
    score_label: ClassVar[str]  # name of this score in messages and plots
    result_name: ClassVar[str]  # attribute of `TrainingResult` that is the trained pipeline
    served_functions: ClassVar[str]  # module and class of the SavedModel's `ServedFunctions`
    own_settings: ClassVar[tuple[str, ...]] = ()  # fields of `TrainingSettings` that need this task
    shares_a_given_tokenizer: ClassVar[bool] = True  # whether it serves source and target
    # Whether the answers need the pipeline's own search, so that an export must include it.
    needs_own_search: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def pipeline(self) -> type:
        """Returns the `Pipeline` class of trained models; imports it on first use."""

    def check_settings(self, settings) -> dict[str, Any]:
        """Checks the settings, and returns those that the task overrides."""
        return {}

    @abc.abstractmethod
    def check(self, corpus, settings) -> None:
        """Raises an error if the task cannot be learned from the corpus with these settings."""

    @abc.abstractmethod
    def learn_tokenizers(self, corpus, settings, source, report: Callable[[str], object]):
        """Returns the `TokenizerPair` of a training corpus.

        `source` is the tokenizer of the source if it is given and not shared, otherwise None;
        `report` is called with messages.
        """

    @abc.abstractmethod
    def make_score(self, corpus, tokenizers, settings, recipe):
        """Returns the `ScoreOnDev` of a validation corpus, or None if it is not scored."""

    @abc.abstractmethod
    def make_result(self, model, tokenizers, settings, recipe, sentence_profile):
        """Returns the pipeline of a trained model."""

    def check_served(self, pipeline) -> None:  # noqa: B027
        """Raises a `UserError` if a pipeline cannot become a SavedModel."""


# Strings avoid circular imports: a task imports the packages that look it up here.
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
    """Adds a task, with `"package.module.Class"` of its `Task` and, if any, its `TaskCommands`."""
    _ENTRIES[name] = entry
    if commands is not None:
        _COMMANDS[name] = commands
    get_task.cache_clear()


def task_names() -> tuple[str, ...]:
    """Returns the names of all tasks."""
    return tuple(_ENTRIES)


@functools.cache
def get_task(name: str) -> Any:
    """Returns the `Task` with a name; raises a `ValueError` if there is none."""
    if name not in _ENTRIES:
        raise ValueError(f"`task` must be one of {task_names()}. Received: task={name!r}")
    return load_entry(_ENTRIES[name])()


def load_entry(entry: str) -> Any:
    """Imports and returns the object of an entry, `"package.module.name"`."""
    module, _, name = entry.rpartition(".")
    return getattr(importlib.import_module(module), name)


def command_names() -> tuple[str, ...]:
    """Returns the names of the tasks that the command line offers."""
    return tuple(_COMMANDS)


def get_commands(name: str) -> Any:
    """Returns the `TaskCommands` of a task."""
    return load_entry(_COMMANDS[name])()
