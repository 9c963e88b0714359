"""`Task`: what a model is trained for; and the registry of tasks."""

import abc
import dataclasses
import functools
import logging
import pkgutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from keras_transformer.settings.base import Settings
from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.settings.training_settings import TrainingSettings

if TYPE_CHECKING:
    from keras_transformer.data.tokenizer import Tokenizer
    from keras_transformer.data.tokenizer_pair import TokenizerPair
    from keras_transformer.inference.sentences import SentenceProfile

_LOGGER = logging.getLogger(__name__)
# Entry points of installed distributions: `name = "package.module:Class"`.
ENTRY_POINTS = "keras_transformer.tasks"


class Task(abc.ABC):
    """A task that models are trained for: its settings, pipeline, tokenizers and score.

    Its module must not import Keras at its top, because the command line imports it.
    """

    name: ClassVar[str]  # name in settings and files
    command: ClassVar[str]  # the subcommand that uses such a model
    # Name of the class of its `TaskCommands`, such as "package.module:Class"; without them, models
    # of the task are trained in Python only.
    commands: ClassVar[str] = "keras_transformer.cli.task_commands:TaskCommands"
    settings: ClassVar[type[Settings]] = Settings  # of `TrainingSettings.task_settings`
    score_name: ClassVar[str]  # key of the score on the validation set
    score_label: ClassVar[str]  # name of this score in messages and plots
    shares_a_given_tokenizer: ClassVar[bool] = True  # whether it serves source and target
    # Whether the answers need the pipeline's own search, so that an export must include it.
    needs_own_search: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def pipeline(self) -> type[Any]:
        """The `Pipeline` class of trained models."""

    @property
    @abc.abstractmethod
    def served_functions(self) -> type[Any]:
        """The `ServedFunctions` class of SavedModels."""

    def check_settings(self, settings: TrainingSettings) -> TrainingSettings:
        """Returns the settings with all of the task's own, or raises a `ValueError`."""
        task_settings = self.settings.from_dict(settings.task_settings)
        return dataclasses.replace(settings, task_settings=task_settings.to_dict())

    def check(self, corpus: Iterable, settings: TrainingSettings) -> None:  # noqa: B027
        """Raises an error if the task cannot be learned from the corpus with these settings."""

    @abc.abstractmethod
    def learn_tokenizers(
        self,
        corpus: Iterable,
        settings: TrainingSettings,
        source: "Tokenizer | None",
        report: Callable[[str], object],
    ) -> "TokenizerPair":
        """Returns the tokenizers of a training corpus.

        Args:
            corpus: Yields pairs of source and target.
            settings: The settings of the training.
            source: Tokenizer of the source, if it is given and not shared.
            report: Called with messages.
        """

    @abc.abstractmethod
    def make_score(
        self,
        corpus: Iterable,
        tokenizers: "TokenizerPair",
        settings: TrainingSettings,
        recipe: TrainingRecipe,
    ) -> Any:
        """Returns the `ScoreOnDev` of a validation corpus, or None if it is not scored."""

    @abc.abstractmethod
    def make_result(
        self,
        model: Any,
        tokenizers: "TokenizerPair",
        settings: TrainingSettings,
        recipe: TrainingRecipe,
        sentence_profile: "SentenceProfile",
        start_config: dict[str, Any] | None = None,
    ) -> Any:
        """Returns the `Pipeline` of a trained `Transformer`.

        Args:
            model: The trained `Transformer`.
            tokenizers, settings, recipe: Those of the training.
            sentence_profile: What a text of the training corpus looks like; translators split
                longer texts by it.
            start_config: The config of the model directory that the training started from.
        """


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
