"""The Transformer of "Attention Is All You Need" for Keras 3."""

import importlib
import os
import sys

__version__ = "0.1.0"

_PACKAGES = ("bridges", "data", "decoding", "evaluation", "export", "layers", "models", "training")
_HOMES = {
    "Parse": "parser",
    "Parser": "parser",
    "TrainingRecipe": "models",
    "Transformer": "models",
    "TransformerConfig": "models",
    "Translator": "translator",
    "UserError": "errors",
    "get_preset": "models",
    "list_presets": "models",
}

__all__ = [
    "Parse",
    "Parser",
    "TrainingRecipe",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "UserError",
    "__version__",
    "bridges",
    "data",
    "decoding",
    "evaluation",
    "export",
    "get_preset",
    "layers",
    "list_presets",
    "models",
    "training",
]


def __getattr__(name):
    if name in _PACKAGES:
        return importlib.import_module(f"keras_transformer.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"keras_transformer.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__


def _is_command_line():
    """Return whether the `keras-transformer` command is starting, which must not load Keras yet."""
    program = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if program == "-m":  # Python looks for the module to run.
        return "keras_transformer.cli" in sys.orig_argv
    return program in ("keras-transformer", "keras-transformer.exe", "keras-transformer-script.py")


# Layers and models are imported at once, so that `import keras_transformer` is all that Keras needs
# to load a saved model; the rest, with heavier dependencies, when it is first used.
if not _is_command_line():
    if "keras" not in sys.modules:
        importlib.import_module("keras_transformer.start_up").import_keras()
    importlib.import_module("keras_transformer.models")
