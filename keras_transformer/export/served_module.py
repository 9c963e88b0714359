"""What every SavedModel is made of."""

import dataclasses
import functools
import itertools
import json

import tensorflow as tf

import keras_transformer
from keras_transformer.decoding import search_to_dict
from keras_transformer.layers.kernels.stored_kernels import StoredTranspose, stored_kernels


class ServedModule(tf.Module):
    """What is saved: the weights once, the tokenizers, and a function for every signature.

    Args:
        translator: a `Translator` or `Parser`.
        model: the translator's model, or a copy of another dtype.
        make_functions: takes this module and returns an object with a method for every signature.
        inputs: dict of the `tf.TensorSpec`s of the signatures by name.
        num_streams: parts of a request that are searched at the same time.
    """

    def __init__(self, translator, model, make_functions, inputs, num_streams=1):
        super().__init__(name="translator")
        # The model itself stays in the closures: tracked, it would bring its layers' bookkeeping
        # and, once compiled, the optimizer, and each weight a second time.
        transposes = _transposes(model)
        others = [weight.value for weight in model.weights if id(weight) not in transposes]
        # A matrix that several kernels share is saved once.
        matrices = {id(stored.matrix): stored.matrix for stored in transposes.values()}
        self.model_variables = [*others, *matrices.values()]
        self.source_tokenizer = self.target_tokenizer = translator.source_tokenizer.in_graph()
        if translator.target_tokenizer is not translator.source_tokenizer:
            self.target_tokenizer = translator.target_tokenizer.in_graph()
        # A `tf.function` holds the object of a method by a weak reference only.
        self._functions = make_functions(self)
        self._names = tuple(inputs)
        for name, specifications in inputs.items():
            method = _with_stored(getattr(self._functions, name), transposes, num_streams)
            function = tf.function(method, input_signature=specifications, autograph=False)
            setattr(self, name, function)

    def functions(self):
        """Returns the functions by the name of their signature."""
        return {name: getattr(self, name) for name in self._names}


def _transposes(model):
    """Returns `StoredTranspose`s by the kernels' ids, where products are faster so."""
    if model.dtype_policy.name != "bfloat16":
        return {}
    groups = []
    for weight in model.weights:
        if not weight.name.endswith("_kernel"):
            continue
        # Queries, keys and values of self-attention are one product.
        is_next = weight.name in ("key_kernel", "value_kernel")
        if is_next and groups and groups[-1][0].shape[0] == weight.shape[0]:
            groups[-1].append(weight)
        else:
            groups.append([weight])
    return {kernel: stored for group in groups for kernel, stored in _together(group).items()}


def _together(kernels):
    """Returns the `StoredTranspose`s of kernels behind each other in one matrix, by their ids."""
    rows = [tf.transpose(kernel.value) for kernel in kernels]
    matrix = tf.Variable(tf.concat(rows, axis=0), trainable=False)
    ends = list(itertools.accumulate(len(some) for some in rows))
    return {
        id(kernel): StoredTranspose(matrix, end - len(some), end)
        for kernel, some, end in zip(kernels, rows, ends, strict=True)
    }


def _with_stored(method, transposes, num_parts):
    """Returns a function of the same arguments, traced with `stored_kernels`."""

    @functools.wraps(method)
    def function(*texts):
        # A request may ignore the shapes of a signature; the operations would fail obscurely.
        texts = [tf.ensure_shape(text, [None]) for text in texts]
        with stored_kernels(transposes, num_parts):
            return method(*texts)

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
            "precision": model.dtype_policy.name,
            "search": search_to_dict(search),
            "max_source_length": translator.max_source_length,
            "extra_length": translator.extra_length,
            **more,
        }
    )
