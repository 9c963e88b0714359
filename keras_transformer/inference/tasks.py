"""`Task`: all that belongs to a task of training; and the registry of tasks."""

import abc
import argparse
import functools
import logging
import pathlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from keras_transformer.errors import UserError
from keras_transformer.settings.setting import Setting

_LOGGER = logging.getLogger(__name__)
# Entry points of installed distributions: `name = "package.module:Class"`.
ENTRY_POINTS = "keras_transformer.tasks"


class Corpora(NamedTuple):
    """The data of a training, with tokenizers if the data is already encoded."""

    train: Any
    valid: Any
    source_tokenizer: Any = None
    target_tokenizer: Any = None
    also_valid: Any = None  # further validation sets, by name


class Task(abc.ABC):
    """A task that models are trained for: its pipeline, tokenizers, score, exports and commands.

    Its module must not import Keras at its top, because the command line imports it. A task without
    the attributes and methods of the command line is trained in Python only.
    """

    name: ClassVar[str]  # name in settings and files
    command: ClassVar[str]  # the subcommand that uses such a model
    score_name: ClassVar[str]  # key of the score on the validation set
    score_label: ClassVar[str]  # name of this score in messages and plots
    settings: ClassVar[tuple[str, ...]] = ()  # fields of `TrainingSettings` that need this task
    shares_a_given_tokenizer: ClassVar[bool] = True  # whether it serves source and target
    # Whether the answers need the pipeline's own search, so that an export must include it.
    needs_own_search: ClassVar[bool] = False

    # The command line.
    learns_from: ClassVar[str] = ""  # the data of the task in a few words
    commands: ClassVar[Mapping[str, str]] = {}  # modules of its commands, see `cli/application.py`
    options: ClassVar[Sequence[Setting]] = ()  # options of `train` for its data
    tables: ClassVar[Mapping[str, str]] = {}  # its own tables of settings, with headings
    defaults: ClassVar[Mapping[str, Any]] = {}  # defaults of `train` that differ in this task
    data_kinds: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # the options that each kind needs
    # Further options of a kind, in groups that are given together or not at all.
    more_data: ClassVar[Mapping[str, tuple[tuple[str, ...], ...]]] = {}
    missing_data: ClassVar[str] = "Models of this task are trained in Python."  # without data
    model_options: ClassVar[tuple[str, ...]] = ()  # options of `evaluate` that need `--model`
    evaluate_inputs: ClassVar[tuple[str, ...]] = ()  # options of `evaluate` with files to read
    # Options of `evaluate` that take a validation file, with the option of `train` that names it.
    valid_files: ClassVar[Mapping[str, str]] = {}
    evaluate_outputs: ClassVar[tuple[str, ...]] = ()  # options of `evaluate` with files to write

    @property
    @abc.abstractmethod
    def pipeline(self) -> type[Any]:
        """The `Pipeline` class of trained models."""

    @property
    @abc.abstractmethod
    def served_functions(self) -> type[Any]:
        """The `ServedFunctions` class of SavedModels."""

    def check_settings(self, settings) -> dict[str, Any]:
        """Checks the settings, and returns those that the task overrides."""
        return {}

    def check(self, corpus, settings) -> None:  # noqa: B027
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

    @property
    def experiments(self) -> dict[str, pathlib.Path]:
        """TOML files of published trainings by name, the values of `train --experiment`."""
        return {}

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

    def training_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of `TrainingSettings` that the task's own options decide."""
        return {}

    def plan_vocabulary(self, settings, size: int, vocabulary: Any) -> tuple[int | None, str]:
        """Returns the estimated size of the target vocabulary, None if shared, and a description.

        `size` is that of the source's vocabulary; `vocabulary` is a given tokenizer, or None.
        """
        if settings.shared_vocabulary or vocabulary is not None:
            return None, "for both languages"
        return size, "for each language"

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027
        """Adds the options of `evaluate` that only this task has."""

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Evaluates a model or existing answers, prints the scores and returns a report."""
        raise UserError(f"`evaluate` cannot score this task. Received: task={self.name!r}")


# Tasks, or names of their classes, which are imported and called on first use.
_TASKS: dict[str, Task | str] = {
    "translation": "keras_transformer.translation.task:TranslationTask",
    "parsing": "keras_transformer.parsing.task:ParsingTask",
}


def register_task(name: str, task: Task | str) -> None:
    """Adds a task, or the name of its class, such as `"package.module:Class"`.

    A distribution can declare its tasks instead, as entry points of `ENTRY_POINTS`.
    """
    _TASKS[name] = task


def get_task(name: str) -> Task:
    """Returns the task with a name; raises a `ValueError` if there is none."""
    if name not in tuple(_TASKS):
        find_installed_tasks()
    if name not in tuple(_TASKS):  # A damaged file may have a list or a dict.
        raise ValueError(f"`task` must be one of {tuple(_TASKS)}. Received: task={name!r}")
    task = _TASKS[name]
    if isinstance(task, str):
        _TASKS[name] = task = pkgutil.resolve_name(task)()
    return task


def all_tasks() -> list[Task]:
    """Returns all tasks, without those of installed packages that cannot be imported."""
    find_installed_tasks()
    return known_tasks()


def known_tasks() -> list[Task]:
    """Returns the tasks of this library, and those that were registered or asked for."""
    tasks = []
    for name in tuple(_TASKS):
        try:
            tasks.append(get_task(name))
        except Exception as error:  # Another package's mistake must not stop every command.
            _warn_once(f"The task {name!r} cannot be imported: {error}")
    return tasks


@functools.cache
def _warn_once(message: str) -> None:
    _LOGGER.warning(message)


@functools.cache
def find_installed_tasks() -> None:
    """Registers the tasks that installed distributions declare."""
    from importlib.metadata import entry_points  # slow to import

    for point in entry_points(group=ENTRY_POINTS):
        _TASKS.setdefault(point.name, point.value)


def toml_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the TOML files of a folder by name, without the ending."""
    return dict(sorted((path.stem, path) for path in folder.glob("*.toml")))
