"""What every SavedModel is made of."""

import dataclasses
import functools
import json

import tensorflow as tf

import keras_transformer
from keras_transformer.decoding import search_to_dict
from keras_transformer.layers.projection import transposed_kernels


class ServedModule(tf.Module):
    """What is saved: the weights once, the tokenizers, and a function for every signature.

    Args:
        translator: a `Translator` or `Parser`.
        model: the translator's model, or a copy of another dtype.
        make_functions: takes this module and returns an object with a method for every signature.
        inputs: dict of the `tf.TensorSpec`s of the signatures by name.
    """

    def __init__(self, translator, model, make_functions, inputs):
        super().__init__(name="translator")
        # The model itself stays in the closures: tracked, it would bring its layers' bookkeeping
        # and, once compiled, the optimizer, and each weight a second time.
        transposes = _transposes(model)
        self.model_variables = [
            transposes.get(id(weight), weight.value) for weight in model.weights
        ]
        self.source_tokenizer = self.target_tokenizer = translator.source_tokenizer.in_graph()
        if translator.target_tokenizer is not translator.source_tokenizer:
            self.target_tokenizer = translator.target_tokenizer.in_graph()
        # A `tf.function` holds the object of a method by a weak reference only.
        self._functions = make_functions(self)
        self._names = tuple(inputs)
        for name, specifications in inputs.items():
            method = _with_transposes(getattr(self._functions, name), transposes)
            function = tf.function(method, input_signature=specifications, autograph=False)
            setattr(self, name, function)

    def functions(self):
        """Returns the functions by the name of their signature."""
        return {name: getattr(self, name) for name in self._names}


def _transposes(model):
    """Returns the transposes of kernels by the kernels' ids, where products are faster so."""
    if model.policy.name != "bfloat16":
        return {}
    return {
        id(weight): tf.Variable(tf.transpose(weight.value)[None], trainable=False)
        for weight in model.weights
        if weight.name.endswith("_kernel")
    }


def _with_transposes(method, transposes):
    """Returns a function of the same arguments, traced with `transposed_kernels`."""

    @functools.wraps(method)
    def function(*arguments):
        with transposed_kernels(transposes):
            return method(*arguments)

    return function


def several_answers(search):
    """Returns the search of the `n_best` signature: one answer per beam if `n_best` is 1."""
    if getattr(search, "n_best", None) == 1:
        return dataclasses.replace(search, n_best=search.beam_size)
    return search


def settings(translator, model, search, **more):
    """Returns what the answers depend on besides the weights, as JSON.

    Args:
        translator: a `Translator` or `Parser`.
        model: its model, or a copy of another dtype.
        search: the search of the export.
        **more: further entries.
    """
    return json.dumps(
        {
            "library_version": keras_transformer.__version__,
            "precision": model.policy.name,
            "search": search_to_dict(search),
            "max_source_length": translator.max_source_length,
            "extra_length": translator.extra_length,
            **more,
        }
    )
