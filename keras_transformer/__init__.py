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
    "errors": ("UserError",),
    "inference": ("Translator",),
    "models": ("TrainingRecipe", "Transformer", "TransformerConfig", "get_preset", "list_presets"),
    "parsing": ("Parse", "Parser"),
}
_TREE_NAMES = "Linearization RebuiltTree Tree TreeSymbols TreebankCorpus clean_tree draw_tree"
_TREE_NAMES += " format_tree read_tree_lines read_trees tree_symbols write_trees"
_SCORE_NAMES = "EvalbParameters ParsevalScore ParsevalSummary SentenceScore parseval"
# Names that version 0.1 had in other packages and modules: they can still be imported from there.
_MOVED_NAMES = {
    "data": {
        "inference": ("SentenceProfile",),
        "parsing": _TREE_NAMES.split(),
        "quickstart": ("number_corpus",),
    },
    "decoding": {"parsing": ("WellFormedTrees",)},
    "evaluation": {"parsing": _SCORE_NAMES.split()},
    "training": {"parsing": ("F1OnDev",)},
}
_MOVED_MODULES = {
    "keras_transformer.data.number_corpus": "keras_transformer.quickstart.corpus",
    "keras_transformer.parser": "keras_transformer.parsing.parser",
    "keras_transformer.translator": "keras_transformer.inference.translator",
}

__all__ = sorted(["__version__", *_PACKAGES, *sum(_HOMES.values(), ())])


def __getattr__(name):
    if name in _PACKAGES:
        return importlib.import_module(f"keras_transformer.{name}")
    return lazy_names(__name__, _HOMES)(name)


def __dir__():
    return __all__


def lazy_names(package: str, modules: dict, parent: str | None = None):
    """Returns the `__getattr__` of a package whose modules are imported when a name is asked for.

    `modules` has the names of each; `parent` is their package, if it is another one.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def find(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{parent or package}.{homes[name]}"), name)

    return find


def moved_names(package: str):
    """Returns the `__getattr__` of a package, which finds the names that have moved from it."""
    return lazy_names(package, _MOVED_NAMES[package.removeprefix(f"{__name__}.")], __name__)


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
