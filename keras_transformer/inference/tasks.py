"""The registry of tasks: what a model can be trained for, and who knows how."""

import importlib

# Imported when asked for: a task knows the packages that ask for it.
_ENTRIES = {
    "translation": "keras_transformer.training.translation_task.TranslationTask",
    "parsing": "keras_transformer.parsing.task.ParsingTask",
}


def get_task(name: str):
    """Returns the task of a name."""
    if name not in _ENTRIES:
        raise ValueError(f"`task` must be one of {tuple(_ENTRIES)}. Received: task={name!r}")
    module, _, kind = _ENTRIES[name].rpartition(".")
    return getattr(importlib.import_module(module), kind)()
