"""`ServedModule`, a SavedModel of any task, and `ServedFunctions`, the base of its signatures."""

import abc
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

import keras_transformer
from keras_transformer.data.special_tokens import EOS_ID, PAD_ID
from keras_transformer.decoding import search_to_dict
from keras_transformer.inference.batch_inference import one_answer, search_ids
from keras_transformer.inference.pipeline import Pipeline
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.kernels.stored_kernels import stored_kernels, stored_variables
from keras_transformer.models import Ensemble, Transformer


class ServedModule(tf.Module):
    """A SavedModel: the weights once, the tokenizers, and a function for every signature.

    `model` is the pipeline's, or a copy of another dtype.
    """

    def __init__(
        self,
        functions: type["ServedFunctions"],
        pipeline: Pipeline,
        model: Transformer | Ensemble,
        search: Any,
        num_streams: int,
    ):
        super().__init__(name="translator")
        # The model stays in the closures. If it were tracked, its optimizer would be saved, and
        # each weight twice.
        self.model_variables, transposes = stored_variables(model)
        self.source_tokenizer = self.target_tokenizer = pipeline.source_tokenizer.in_graph()
        if pipeline.target_tokenizer is not pipeline.source_tokenizer:
            self.target_tokenizer = pipeline.target_tokenizer.in_graph()
        # A `tf.function` holds the object of a method by a weak reference only.
        self._functions = functions(self, pipeline, model, search, num_streams)
        for name, inputs in functions.inputs.items():
            method = _with_stored(getattr(self._functions, name), transposes, num_streams)
            signature = [tf.TensorSpec([None], tf.string, name=text) for text in inputs]
            function = tf.function(method, input_signature=signature, autograph=False)
            setattr(self, name, function)


class ServedFunctions(abc.ABC):
    """The signatures of a task, one method for each; every task has a subclass.

    The `ServedModule` tracks the variables and tokenizers; the other arguments are as there.

    Attributes:
        inputs: names of the inputs, all strings `[batch]`, by the name of their signature.
        outputs: names of the output for the best answer, and for several.
    """

    inputs: ClassVar[dict[str, tuple[str, ...]]]
    outputs: ClassVar[tuple[str, str]]

    def __init__(self, module, pipeline, model, search, num_streams):
        self._module = module
        self._pipeline = pipeline
        self._model = model
        self._num_streams = num_streams
        self._best, self._several = one_answer(search), search
        if getattr(search, "n_best", None) == 1:  # One answer for each beam.
            self._several = dataclasses.replace(search, n_best=search.beam_size)
        self._settings = {
            "library_version": keras_transformer.__version__,
            "precision": model.dtype_policy.name,
            "search": search_to_dict(search),
            "max_source_length": pipeline.max_source_length,
            "extra_length": pipeline.extra_length,
            "num_streams": num_streams,
        }

    def serving_default(self, text: Tensor) -> dict[str, Tensor]:
        found, truncated = self._answer(text, self._best)
        answer, score = found["answers"][:, 0], found["scores"][:, 0]
        return {self.outputs[0]: answer, "score": score, "truncated": truncated}

    def n_best(self, text: Tensor) -> dict[str, Tensor]:
        found, truncated = self._answer(text, self._several)
        answers, scores = found["answers"], found["scores"]
        return {self.outputs[1]: answers, "scores": scores, "truncated": truncated}

    @abc.abstractmethod
    def _answer(self, text, search):
        """Returns the result of `_search`, and bool `[batch]`, whether a source was cut."""

    def _encode_source(self, text):
        return encode(self._module.source_tokenizer, text, self._pipeline.max_source_length)

    def _limits(self, text):
        """Returns the outputs of the signature `limits` that all tasks have."""
        lengths = self._module.source_tokenizer.tokenize(text).row_lengths()
        num_tokens = tf.cast(lengths, tf.int32) + 1  # and EOS
        longest = self._pipeline.max_source_length
        return {
            "num_tokens": num_tokens,
            "max_source_tokens": tf.fill(tf.shape(text), longest),
            "truncated": num_tokens > longest,
            "settings": tf.fill(tf.shape(text), json.dumps(self._settings)),
        }

    def _search(self, sources, lengths, search, write, constrain=None):
        """Returns the `answers` and `scores` `[batch, n]` of ragged sources, searched in chunks.

        `write(start, end, tokens, scores)` returns the answers `[rows, n]` to a range of rows;
        `constrain` a constraint from `lengths`, the argument of `Pipeline.max_lengths`.
        """

        def search_rows(start, end):
            options = {}
            if hasattr(search, "seed"):
                seed = (search.seed + tf.cast(start, tf.int64)) % 2**31
                options["seed"] = tf.cast(seed, tf.int32)
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
        shape = [0, getattr(search, "n_best", search.width)]
        empty = {"answers": tf.zeros(shape, tf.string), "scores": tf.zeros(shape)}
        return in_chunks(search_rows, tf.shape(lengths)[0], rows, empty, self._num_streams)


def _with_stored(method, transposes, num_parts):
    """Returns a function of the same arguments, traced with `stored_kernels`."""

    @functools.wraps(method)
    def function(*texts):
        # A request may ignore the shapes of a signature, which makes operations fail obscurely.
        texts = [tf.ensure_shape(text, [None]) for text in texts]
        with stored_kernels(transposes, num_parts):
            return method(*texts)

    return function


Rows = dict[str, Tensor]

# Maximum number of padded positions of source and target in a chunk of rows.
MAX_TOKENS = 32_768


def encode(tokenizer: Any, text: Tensor, max_length: int) -> tuple[tf.RaggedTensor, Tensor]:
    """Returns ragged ids `[batch, None]` with EOS, and bool `[batch]`, whether a text was cut."""
    ids = tf.cast(tokenizer.tokenize(text), tf.int32)
    is_cut = ids.row_lengths() > max_length - 1
    ends = tf.fill([tf.shape(text)[0], 1], EOS_ID)
    return tf.concat([ids[:, : max_length - 1], ends], axis=1), is_cut


def padded(ids: tf.RaggedTensor, length: Tensor | None = None) -> Tensor:
    """Returns ragged ids as int32 `[batch, length]`; None for the length of the longest row."""
    return ids.to_tensor(PAD_ID, shape=None if length is None else tf.stack([-1, length]))


def longest_row(*rows: tf.RaggedTensor) -> Tensor:
    """Returns the maximum length of a row in the ragged tensors, at least 1."""
    return tf.reduce_max([tf.cast(ids.bounding_shape()[1], tf.int32) for ids in rows] + [1])


def rows_per_chunk(*limits: tuple) -> Tensor:
    """Returns the maximum number of rows, at least 1, within all `(size of a row, bound)`."""
    return tf.reduce_min([tf.maximum(bound // tf.maximum(size, 1), 1) for size, bound in limits])


def in_chunks(
    function: Callable[[Tensor, Tensor], Rows],
    num_rows: Tensor,
    chunk_size: Tensor,
    empty: Rows,
    num_streams: int = 1,
) -> Rows:
    """Joins the results of `function(start, end)` for chunks of rows; `empty` is that of no row.

    `num_streams` chunks at the same time have `chunk_size` rows together.
    """
    if num_streams == 1:
        return _in_turn(function, 0, num_rows, chunk_size, empty)
    share = -(-num_rows // num_streams)
    chunk_size = tf.maximum(chunk_size // num_streams, 1)

    # As a function, it is in the graph once.
    @tf.function(autograph=False)
    def stream(start, end):
        return _in_turn(function, start, end, chunk_size, empty)

    limits = [tf.minimum(number * share, num_rows) for number in range(num_streams + 1)]
    # TensorFlow runs calls in parallel that neither depend on each other nor write variables.
    found = [stream(*pair) for pair in itertools.pairwise(limits)]
    return {name: tf.concat([part[name] for part in found], axis=0) for name in empty}


def _in_turn(function, first, last, chunk_size, empty):
    """Returns the function's results for the rows from `first` to `last`, chunk by chunk."""

    def extend(start, found):
        end = tf.minimum(start + chunk_size, last)
        new = function(start, end)
        return end, {name: tf.concat([found[name], new[name]], axis=0) for name in found}

    shapes = {name: tf.TensorShape([None, *part.shape[1:]]) for name, part in empty.items()}
    _, found = tf.while_loop(
        lambda start, found: start < last,
        extend,
        (tf.convert_to_tensor(first), empty),
        shape_invariants=(tf.TensorShape([]), shapes),
        parallel_iterations=1,
    )
    return found
