"""One model directory, or several whose models answer together, as a translator or a parser."""

import os

from keras_transformer.errors import UserError, one_line
from keras_transformer.inference.model_directory import (
    TASKS,
    read_config,
    read_model,
    read_recipe,
    read_tokenizers,
)

SETTINGS = ("extra_length", "max_source_length")
# Those of one task alone.
TASK_SETTINGS = {
    "translation": ("sentence_profile",),
    "parsing": ("linearization", "constrained"),
}
_COMMANDS = {"translation": "translate", "parsing": "parse"}
_HOLDERS = {"translation": "a translator", "parsing": "a parser"}


def load_directories(holder, directory, dtype=None, task: str = "translation"):
    """Makes a `Translator` or a `Parser` of a model directory, or of several.

    Args:
        holder: the class.
        directory: a path, or a list of them.
        dtype: dtype policy of the models; None for the global one.
        task: as of `read_model_directories`, whose errors this raises too.

    Returns:
        An object of the class.

    Raises:
        UserError: if the class refuses what the directory says.
    """
    is_one = isinstance(directory, str | os.PathLike)
    directories = [directory] if is_one else list(directory)
    arguments = read_model_directories(directories, dtype, task)
    try:
        return holder(**arguments)
    except (ValueError, TypeError) as error:
        raise UserError(f"{directories[0]}/config.json: {one_line(error)}") from error


def read_model_directories(directories: list, dtype=None, task: str = "translation") -> dict:
    """Reads what a `Translator` or a `Parser` is made of.

    Args:
        directories: model directories; the settings are those of the first.
        dtype: dtype policy of the models; None for the global one.
        task: one of `TASKS`, what the directories must be for.

    Returns:
        Dict of the arguments of `Translator`, or of `Parser`; the model of several directories is
        an `Ensemble`.

    Raises:
        ValueError: if there is no directory.
        UserError: if a file is missing, damaged, or does not fit the others, the vocabularies of
            several directories differ, or one is for another task.
    """
    from keras_transformer.models import Ensemble

    if not directories:
        raise ValueError("There is no model directory to load. Received: directory=[]")
    configs = [read_config(directory) for directory in directories]
    pairs = list(zip(directories, configs, strict=True))
    for directory, config in pairs:
        check_task(directory, config, task)
    tokenizers = [read_tokenizers(directory, config) for directory, config in pairs]
    if len(directories) > 1:
        _check_same_vocabularies(directories, tokenizers)
        _check_same_linearizations(pairs)
    models = [read_model(directory, config, dtype=dtype) for directory, config in pairs]
    names = SETTINGS + TASK_SETTINGS[task]
    source_tokenizer, target_tokenizer = tokenizers[0]
    return {
        "model": models[0] if len(models) == 1 else Ensemble(models),
        "source_tokenizer": source_tokenizer,
        "target_tokenizer": target_tokenizer,
        "search": configs[0]["search"],
        "recipe": read_recipe(directories[0]) if len(models) == 1 else None,
        **{name: configs[0][name] for name in names if configs[0].get(name) is not None},
    }


def check_task(directory, config: dict, task: str) -> None:
    """Raises a `UserError` that says what to use unless a model directory is for a task.

    Args:
        directory: the model directory.
        config: what `read_config` returned.
        task: one of `TASKS`.
    """
    found = config["task"]
    if found != task:
        raise UserError(
            f"{str(directory)!r} holds {_HOLDERS[found]}, not {_HOLDERS[task]}: use "
            f"{TASKS[found]}.load, or `keras-transformer {_COMMANDS[found]}`."
        )


def _check_same_vocabularies(directories, tokenizers):
    """Raises unless the same ids mean the same everywhere, naming the first place where not."""
    first, *others = [_vocabularies(*both) for both in tokenizers]
    for directory, other in zip(directories[1:], others, strict=True):
        for side, expected, found in zip(("source", "target"), first, other, strict=True):
            if found == expected:
                continue
            differ = f"{len(expected):,} and {len(found):,} pieces"
            if len(found) == len(expected):
                index = [a == b for a, b in zip(expected, found, strict=True)].index(False)
                differ = f"id {index} is {expected[index]!r} and {found[index]!r}"
            raise UserError(
                "Models translate together if they have the same vocabulary. "
                f"Received: {str(directories[0])!r} and {str(directory)!r}, whose {side} "
                f"vocabularies differ: {differ}"
            )


def _check_same_linearizations(pairs):
    """Raises unless all parsers write trees in the same way."""
    (first, config), *others = pairs
    for directory, other in others:
        if other.get("linearization") != config.get("linearization"):
            raise UserError(
                "Models parse together if they write trees in the same way. "
                f"Received: {str(first)!r} with {config.get('linearization')} and "
                f"{str(directory)!r} with {other.get('linearization')}"
            )


def _vocabularies(source_tokenizer, target_tokenizer):
    """Returns the pieces of the source and of the target in the order of their ids."""
    both = source_tokenizer, target_tokenizer or source_tokenizer
    return [tokenizer.pieces(range(tokenizer.vocab_size)) for tokenizer in both]
