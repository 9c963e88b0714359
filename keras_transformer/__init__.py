"""The Transformer of "Attention Is All You Need" for Keras 3."""

import importlib

from keras_transformer import decoding, layers, models
from keras_transformer.errors import UserError
from keras_transformer.models import (
    TrainingRecipe,
    Transformer,
    TransformerConfig,
    get_preset,
    list_presets,
)

__version__ = "0.1.0"

# Imported when first used: their dependencies are heavier than the layers need.
_LAZY_PACKAGES = ("data", "evaluation", "export", "training")

__all__ = [
    "TrainingRecipe",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "UserError",
    "__version__",
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
    if name == "Translator":
        return importlib.import_module("keras_transformer.translator").Translator
    if name in _LAZY_PACKAGES:
        return importlib.import_module(f"keras_transformer.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__
