"""The parts that the SavedModel of every task is made of."""

import dataclasses
import functools
import itertools
import json
from typing import ClassVar

import tensorflow as tf

import keras_transformer
from keras_transformer.decoding import search_to_dict
from keras_transformer.export.graph_rows import (
    chunk_seed,
    in_chunks,
    longest_row,
    padded,
    rows_per_chunk,
)
from keras_transformer.inference.batch_inference import one_answer, search_ids
from keras_transformer.layers.kernels.stored_kernels import StoredTranspose, stored_kernels


class ServedModule(tf.Module):
    """A SavedModel: the weights once, the tokenizers, and a function for every signature.

    Args:
        functions: a subclass of `ServedFunctions`.
        pipeline: a `Translator` or another `Pipeline`.
        model: the pipeline's model, or a copy of another dtype.
        search: a search of `keras_transformer.decoding`.
        num_streams: parts of a request that are searched at the same time.
    """

    def __init__(self, functions, pipeline, model, search, num_streams: int = 1):
        super().__init__(name="translator")
        # The model itself stays in the closures. If it were tracked, its layers and its optimizer
        # would be saved too, and each weight twice.
        transposes = _transposes(model)
        others = [weight.value for weight in model.weights if id(weight) not in transposes]
        # A matrix that several kernels share is saved once.
        matrices = {id(stored.matrix): stored.matrix for stored in transposes.values()}
        self.model_variables = [*others, *matrices.values()]
        self.source_tokenizer = self.target_tokenizer = pipeline.source_tokenizer.in_graph()
        if pipeline.target_tokenizer is not pipeline.source_tokenizer:
            self.target_tokenizer = pipeline.target_tokenizer.in_graph()
        # A `tf.function` holds the object of a method by a weak reference only.
        self._functions = functions(self, pipeline, model, search, num_streams)
        self.inputs = functions.inputs
        for name, inputs in functions.inputs.items():
            method = _with_stored(getattr(self._functions, name), transposes, num_streams)
            signature = [tf.TensorSpec([None], tf.string, name=text) for text in inputs]
            function = tf.function(method, input_signature=signature, autograph=False)
            setattr(self, name, function)

    def functions(self):
        """Returns the functions by the name of their signature."""
        return {name: getattr(self, name) for name in self.inputs}


class ServedFunctions:
    """The signatures of a task, one method for each; a subclass for each task.

    Args:
        module: the `ServedModule`, which holds what a SavedModel has to track.
        pipeline, model, search, num_streams: as in `ServedModule`.

    Attributes:
        inputs: names of the inputs, all strings `[batch]`, by the name of their signature.
    """

    inputs: ClassVar[dict[str, tuple[str, ...]]]

    def __init__(self, module, pipeline, model, search, num_streams):
        self._module = module
        self._pipeline = pipeline
        self._model = model
        self._num_streams = num_streams
        self._best, self._several = one_answer(search), _several_answers(search)
        self._settings = {
            "library_version": keras_transformer.__version__,
            "precision": model.dtype_policy.name,
            "search": search_to_dict(search),
            "max_source_length": pipeline.max_source_length,
            "extra_length": pipeline.extra_length,
            "num_streams": num_streams,
        }

    def _search(self, sources, lengths, search, write, constrain=None):
        """Searches for the answers to the sources of a request, in chunks.

        Args:
            sources: ragged ids, with EOS.
            lengths: int32 `[batch]`, what `Pipeline.max_lengths` takes; 0 for no source.
            search: the search.
            write: `write(start, end, tokens, scores)` returns the answers to a range of rows,
                strings `[rows, n]`, from int32 `[rows, n, length]` and float32 `[rows, n]`.
            constrain: function of the lengths that returns a constraint; None for no constraint.

        Returns:
            Dict of `answers` and `scores` `[batch, n]`.
        """
        num_answers = getattr(search, "n_best", search.width)

        def search_rows(start, end):
            options = chunk_seed(search, start)
            if constrain is not None:
                options["constraints"] = [constrain(lengths[start:end])]
            max_lengths = self._pipeline.max_lengths(lengths[start:end])
            source = padded(sources[start:end])
            result = search_ids(self._model, source, max_lengths, search, **options)
            scores = tf.cast(result.scores, tf.float32)
            return {
                "answers": write(start, end, result.tokens, scores),
                "scores": tf.where((lengths[start:end] == 0)[:, None], 0.0, scores),
            }

        longest = tf.reduce_max(tf.concat([self._pipeline.max_lengths(lengths), [1]], axis=0))
        positions = search.width * (longest_row(sources) + longest)
        rows = rows_per_chunk((positions, self._pipeline.max_batch_tokens))
        empty = {
            "answers": tf.zeros([0, num_answers], tf.string),
            "scores": tf.zeros([0, num_answers]),
        }
        return in_chunks(search_rows, tf.shape(lengths)[0], rows, empty, self._num_streams)

    def _settings_of(self, text):
        """Returns what the answers depend on besides the weights, as JSON, for each text."""
        return tf.fill(tf.shape(text), json.dumps(self._settings))


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


def _several_answers(search):
    """Returns the search of the `n_best` signature: one answer per beam if `n_best` is 1."""
    if getattr(search, "n_best", None) == 1:
        return dataclasses.replace(search, n_best=search.beam_size)
    return search
