"""The Transformer of "Attention Is All You Need" for Keras 3."""

import importlib
import sys

__version__ = "2.0.0"

_PACKAGES = (
    "bridges",
    "data",
    "decoding",
    "evaluation",
    "export",
    "inference",
    "layers",
    "models",
    "parsing",
    "quickstart",
    "training",
)
_HOMES = {
    "errors": ("UserError",),
    "inference": ("Translator",),
    "models": ("TrainingRecipe", "Transformer", "TransformerConfig", "get_preset", "list_presets"),
    "parsing": ("Parse", "Parser"),
}

__all__ = sorted(["__version__", *_PACKAGES, *sum(_HOMES.values(), ())])


def __getattr__(name):
    if name in _PACKAGES:
        return importlib.import_module(f"keras_transformer.{name}")
    return lazy_names(__name__, _HOMES)[1](name)


def __dir__():
    return __all__


def lazy_names(package: str, modules: dict):
    """Returns `__all__`, `__getattr__` and `__dir__` of a package with lazily imported modules."""
    homes = {name: module for module, names in modules.items() for name in names}

    def find(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return sorted(homes), find, lambda: sorted(homes)


# Packages are imported on first use, so that the command line starts quickly. In a program that has
# Keras, layers, models, losses and optimizers register themselves now, for
# `keras.saving.load_model`.
if "keras" in sys.modules:
    importlib.import_module("keras_transformer.training")
