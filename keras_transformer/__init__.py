"""The Transformer of "Attention Is All You Need" for Keras 3."""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys

__version__ = "0.1.0"

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
    "Parse": "parsing",
    "Parser": "parsing",
    "TrainingRecipe": "models",
    "Transformer": "models",
    "TransformerConfig": "models",
    "Translator": "inference",
    "UserError": "errors",
    "get_preset": "models",
    "list_presets": "models",
}
# Names that version 0.1 had in other packages and modules: they can still be imported from there.
_MOVED_NAMES = {
    "data": {
        "SentenceProfile": "inference",
        "number_corpus": "quickstart",
        **dict.fromkeys(
            (
                "Linearization",
                "RebuiltTree",
                "Tree",
                "TreeSymbols",
                "TreebankCorpus",
                "clean_tree",
                "draw_tree",
                "format_tree",
                "read_tree_lines",
                "read_trees",
                "tree_symbols",
                "write_trees",
            ),
            "parsing",
        ),
    },
    "decoding": {"WellFormedTrees": "parsing"},
    "evaluation": dict.fromkeys(
        ("EvalbParameters", "ParsevalScore", "ParsevalSummary", "SentenceScore", "parseval"),
        "parsing",
    ),
    "training": {"F1OnDev": "parsing"},
}
_MOVED_MODULES = {
    "keras_transformer.data.number_corpus": "keras_transformer.quickstart.corpus",
    "keras_transformer.parser": "keras_transformer.parsing.parser",
    "keras_transformer.translator": "keras_transformer.inference.translator",
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
    "inference",
    "layers",
    "list_presets",
    "models",
    "parsing",
    "quickstart",
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


def lazy_names(package: str, modules: dict):
    """Returns the `__getattr__` of a package whose modules are imported when a name is asked for.

    Args:
        package: the `__name__` of the package.
        modules: for each module of the package, the names that are taken from it.
    """
    homes = {name: module for module, names in modules.items() for name in names}
    return _finder(package, {name: f"{package}.{module}" for name, module in homes.items()})


def moved_names(package: str):
    """Returns the `__getattr__` of a package, which finds the names that have moved from it."""
    moved = _MOVED_NAMES[package.removeprefix("keras_transformer.")]
    return _finder(package, {name: f"keras_transformer.{home}" for name, home in moved.items()})


def _finder(package, homes):
    def find(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return find


class _MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module that has moved under its earlier name as well."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name in _MOVED_MODULES else None

    def exec_module(self, module):
        sys.modules[module.__name__] = importlib.import_module(_MOVED_MODULES[module.__name__])


sys.meta_path.append(_MovedModules())


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
        importlib.import_module("keras_transformer.cli.backend").import_keras()
    importlib.import_module("keras_transformer.models")
