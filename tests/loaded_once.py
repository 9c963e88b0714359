"""Model directories that are read once, so that many commands share what is compiled of a model."""

import copy

import keras

from keras_transformer.inference.model_directory import choose_precision
from keras_transformer.inference.translator import Translator
from keras_transformer.layers.effective_weights import all_maps
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
        if not names.issuperset(paths):
            return load(directory, dtype)
        dtype = choose_precision(dtype) or keras.config.dtype_policy().name
        key = holder, paths, dtype
        # `quantize` changes the model that is shared.
        if key not in _LOADED or any(map(_is_quantized, all_maps(_LOADED[key].model))):
            _LOADED[key] = load(directory, dtype)
        # Settings and counts of its own; the same model and compiled searches.
        pipeline = copy.copy(_LOADED[key])
        pipeline._inference = copy.copy(pipeline._inference)
        return pipeline

    return load_or_copy


def _is_quantized(layer):
    return layer.quantization_mode is not None
