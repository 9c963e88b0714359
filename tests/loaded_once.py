"""Model directories that are read once, so that many commands share what is compiled of a model."""

import copy

from keras_transformer.inference.translator import Translator
from keras_transformer.parsing.parser import Parser

_LOADED = {}


def load_once(monkeypatch, *directories):
    """Makes the loading of directories that do not change give what an earlier test has loaded."""
    names = {str(directory) for directory in directories}
    for holder in (Translator, Parser):
        monkeypatch.setattr(holder, "load", _sharing(holder, holder.load, names))


def _sharing(holder, load, names):
    def load_or_copy(directory, dtype=None):
        paths = directory if isinstance(directory, list | tuple) else [directory]
        paths = tuple(map(str, paths))
        if dtype is not None or not names.issuperset(paths):
            return load(directory, dtype)
        key = holder, paths
        if key not in _LOADED:
            _LOADED[key] = load(directory)
        # Settings and counts of its own; the same model.
        return copy.copy(_LOADED[key])

    return load_or_copy
