"""Settings of `train --task parsing`, and which ones go with which task."""

from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import non_negative_int, positive_int
from keras_transformer.cli.setting import Setting
from keras_transformer.errors import UserError

PARSING: tuple[Setting, ...] = (
    Setting(
        "trees",
        str,
        "training trees in brackets, in the style of the Penn Treebank, .gz too",
        metavar="FILE",
    ),
    Setting(
        "valid_trees",
        str,
        "trees to choose and watch the model by; never the test set",
        metavar="FILE",
    ),
    Setting(
        "limit_trees",
        positive_int,
        "train on N of the trees, drawn at random; those of a smaller N are among those of a "
        "larger one (default: all)",
        metavar="N",
    ),
    Setting("emit_words", bool, "the trees that the model writes have the words in them", False),
    Setting("emit_tags", bool, "they have the tags of the words in them", False),
    Setting(
        "emit_numbers",
        bool,
        "they have a number for each word (default: true, unless words or tags are in them); "
        "if false and they have none of the three, XX for each, as in the paper",
    ),
    Setting(
        "unlabelled_closing", bool, "their closing brackets are all the same, without label", False
    ),
    Setting(
        "f1_every",
        non_negative_int,
        "parse the validation trees at every Nth validation; 0 never",
        1,
        metavar="N",
    ),
    Setting(
        "f1_beam_size", positive_int, "beam of these parses; 1 is greedy and fast", 1, metavar="N"
    ),
    Setting(
        "f1_trees",
        positive_int,
        "parse N of the validation trees, drawn at random once (default: all)",
        metavar="N",
    ),
)

# What the defaults of other settings are in parsing.
_DEFAULTS = {"preset": "parsing_small", "shared_vocabulary": False}
_OF_TRANSLATION = (
    "source target valid_source valid_target tsv valid_tsv dataset source_language target_language "
    "train_split valid_split prepared data_dir shared_vocabulary bpe_dropout "
    "bleu_every bleu_beam_size bleu_lowercase bleu_tokenize"
).split()


def linearization_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the `Linearization` that the settings say.

    Args:
        values: settings by name.

    Returns:
        Fields by name.
    """
    words, tags, numbers = (values[f"emit_{part}"] for part in ("words", "tags", "numbers"))
    if numbers is None:
        numbers = not (words or tags)
    return {
        "words": words,
        "tags": tags,
        "numbers": numbers,
        "labelled_closing": not values["unlabelled_closing"],
    }


def task_defaults(task: str) -> Mapping[str, Any]:
    """Returns the defaults that are others for a task.

    Args:
        task: `"translation"` or `"parsing"`.

    Returns:
        Settings by name.
    """
    return _DEFAULTS if task == "parsing" else {}


def check_task(values: Mapping[str, Any], settings: Mapping[str, Setting]) -> None:
    """Refuses settings of the other task.

    Args:
        values: settings by name.
        settings: every setting by name.

    Raises:
        UserError: if one that makes no sense for the task has not its default value.
    """
    task = values["task"]
    others = _OF_TRANSLATION if task == "parsing" else [setting.name for setting in PARSING]
    other_task = "translation" if task == "parsing" else "parsing"
    defaults = task_defaults(task)
    for name in others:
        if values[name] != defaults.get(name, settings[name].default):
            flag = settings[name].flag
            raise UserError(f"{flag} goes with --task {other_task}. Received: --task {task}")
