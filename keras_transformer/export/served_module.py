"""`ServedModule`, which becomes a SavedModel, and `ServedFunctions`, the base of its signatures."""

import abc
import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

import keras_transformer
from keras_transformer.data.tokenizer import EOS_ID, PAD_ID
from keras_transformer.decoding import search_to_dict
from keras_transformer.export.stored_kernels import StoredKernels
from keras_transformer.inference.batch_inference import (
    default_batch_size,
    one_answer,
    rounded_up,
    search_ids,
)
from keras_transformer.inference.pipeline import Pipeline
from keras_transformer.inference.shortlist import SIZES, Shortlist
from keras_transformer.layers.tensors import Tensor
from keras_transformer.models import Ensemble, Transformer


class ServedModule(tf.Module):
    """The weights, the tokenizers and a function for each signature, to save as a SavedModel.

    `model` is a copy of the pipeline's model, whose linear maps are replaced.
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
        kernels = StoredKernels(model, num_streams)
        # Not `self.model`: TensorFlow would save its optimizer, and each weight twice.
        self.model_variables = kernels.variables
        self.source_tokenizer = self.target_tokenizer = pipeline.source_tokenizer.in_graph()
        if pipeline.target_tokenizer is not pipeline.source_tokenizer:
            self.target_tokenizer = pipeline.target_tokenizer.in_graph()
        self._functions = functions(self, pipeline, model, search, num_streams)
        for name, inputs in functions.inputs.items():
            method = _with_weights(getattr(self._functions, name), kernels)
            signature = [tf.TensorSpec([None], tf.string, name=text) for text in inputs]
            function = tf.function(method, input_signature=signature, autograph=False)
            setattr(self, name, function)


class ServedFunctions(abc.ABC):
    """Base class of the signatures of a task, which are its methods.

    `module` is the `ServedModule`, which tracks the variables and tokenizers; the other arguments
    are those of its constructor.

    Attributes:
        inputs: names of the inputs of each signature, all strings `[batch]`.
        outputs: name of the output for the best answer, and name of the one for several answers.
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
        """Returns the result of `_search`, and bool `[batch]`: whether each source was cut."""

    def _encode_source(self, text):
        return encode(self._module.source_tokenizer, text, self._pipeline.max_source_length)

    def _limits(self, text):
        """Returns the outputs of the signature `limits` that all tasks share."""
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
        """Returns the `answers` and `scores` `[batch, n]` of ragged sources.

        The rows are sorted by length, longest first, and searched in chunks, `num_streams` at the
        same time. `lengths` is the argument of `Pipeline.max_lengths`. `write(tokens, scores)`
        returns the answers `[batch, n]`; `constrain(lengths)` returns a constraint for some rows.
        """
        pipeline = self._pipeline
        limits = pipeline.max_lengths(lengths)
        source_lengths = tf.cast(sources.row_lengths(), tf.int32)
        order = tf.argsort(source_lengths, direction="DESCENDING", stable=True)
        longest_limit = tf.reduce_max(tf.concat([limits, [1]], axis=0))
        positions = search.width * (tf.gather(source_lengths, order) + longest_limit)
        starts = self._starts_of_chunks(positions, default_batch_size(search.width))

        def search_chunk(chunk):
            rows, options = order[starts[chunk] : starts[chunk + 1]], {}
            if hasattr(search, "seed"):
                seed = (search.seed + tf.cast(starts[chunk], tf.int64)) % 2**31
                options["seed"] = tf.cast(seed, tf.int32)
            if constrain is not None:
                options["constraints"] = [constrain(tf.gather(lengths, rows))]
            source = padded(tf.gather(sources, rows), self._padded_length(source_lengths[rows[0]]))
            options["token_ids"] = token_ids(getattr(pipeline, "shortlist", None), source)
            result = search_ids(self._model, source, tf.gather(limits, rows), search, **options)
            missing = longest_limit - tf.shape(result.tokens)[2]
            tokens = tf.pad(result.tokens, [[0, 0], [0, 0], [0, missing]], constant_values=PAD_ID)
            return {"tokens": tokens, "scores": tf.cast(result.scores, tf.float32)}

        num_answers = getattr(search, "n_best", search.width)
        shapes = {"tokens": [None, num_answers, None], "scores": [None, num_answers]}
        dtypes = {"tokens": tf.int32, "scores": tf.float32}

        def search_chunks():
            # A chunk must not have side effects: TensorFlow would run the chunks one by one.
            found = tf.map_fn(
                search_chunk,
                tf.range(tf.size(starts) - 1),
                parallel_iterations=self._num_streams,
                fn_output_signature={
                    name: tf.RaggedTensorSpec(shapes[name], dtypes[name], ragged_rank=0)
                    for name in shapes
                },
            )
            return {name: tf.gather(found[name].values, tf.argsort(order)) for name in found}

        def nothing():
            return {
                "tokens": tf.zeros([0, num_answers, 1], tf.int32),
                "scores": tf.zeros([0, num_answers]),
            }

        found = tf.cond(tf.size(order) > 0, search_chunks, nothing)
        scores = tf.where((lengths == 0)[:, None], 0.0, found["scores"])
        return {"answers": write(found["tokens"], scores), "scores": scores}

    def _starts_of_chunks(self, positions, max_rows):
        """Returns the index of the first row of each chunk, followed by the number of rows.

        `positions` has the maximum length of source plus answers of each row, in descending order.
        """
        num_rows = tf.size(positions)
        sizes = self._pipeline.max_batch_tokens // self._num_streams // positions
        # A small request is divided evenly among the streams.
        sizes = tf.clip_by_value(sizes, 1, tf.minimum(max_rows, -(-num_rows // self._num_streams)))

        def add_chunk(starts):
            start = starts[-1]
            return [tf.concat([starts, [tf.minimum(start + sizes[start], num_rows)]], axis=0)]

        [starts] = tf.while_loop(
            lambda starts: starts[-1] < num_rows,
            add_chunk,
            [tf.constant([0])],
            shape_invariants=[tf.TensorShape([None])],
        )
        return starts

    def _padded_length(self, longest):
        length, positions = rounded_up(longest), self._model.config.max_length
        return length if positions is None else tf.minimum(length, positions)


def _with_weights(method, kernels):
    """Returns `method` as a function that reads the weights once, before all loops."""

    @functools.wraps(method)
    def function(*texts):
        # Requests with other shapes than the signature's would fail later with obscure errors.
        texts = [tf.ensure_shape(text, [None]) for text in texts]
        with kernels.read_once():
            return method(*texts)

    return function


Rows = dict[str, Tensor]

# Maximum padded positions (of the longer side) in a chunk to score.
MAX_TOKENS = 32_768


def encode(tokenizer: Any, text: Tensor, max_length: int) -> tuple[tf.RaggedTensor, Tensor]:
    """Returns ragged ids `[batch, None]` with EOS, and bool `[batch]`: whether a text was cut."""
    ids = tf.cast(tokenizer.tokenize(text), tf.int32)
    is_cut = ids.row_lengths() > max_length - 1
    ends = tf.fill([tf.shape(text)[0], 1], EOS_ID)
    return tf.concat([ids[:, : max_length - 1], ends], axis=1), is_cut


def padded(ids: tf.RaggedTensor, length: Tensor | None = None) -> Tensor:
    """Returns ragged ids padded to int32 `[batch, length]`; None pads to the longest row."""
    return ids.to_tensor(PAD_ID, shape=None if length is None else tf.stack([-1, length]))


def token_ids(shortlist: Shortlist | None, source: Tensor) -> Tensor | None:
    """Returns `Shortlist.token_ids` for sources, int32 `[batch, length]`; None for all tokens."""
    if shortlist is None or shortlist.vocab_size < SIZES[0]:
        return None
    candidates = tf.reshape(tf.gather(shortlist.candidates, source), [-1])
    listed = tf.concat([shortlist.frequent, candidates], axis=0)[:, None]
    nothing = tf.zeros([shortlist.vocab_size], tf.bool)
    flags = tf.tensor_scatter_nd_update(nothing, listed, tf.fill([tf.size(listed)], True))
    sizes = tf.constant(SIZES)
    num_listed = tf.reduce_sum(tf.cast(flags, tf.int32))
    size = tf.minimum(
        tf.reduce_min(tf.boolean_mask(sizes, sizes >= num_listed)), shortlist.vocab_size
    )
    others = tf.where(~flags)[: size - num_listed]
    return tf.sort(tf.cast(tf.concat([tf.where(flags), others], axis=0)[:, 0], tf.int32))


def longest_row(*rows: tf.RaggedTensor) -> Tensor:
    """Returns the maximum length of a row in the ragged tensors, at least 1."""
    return tf.reduce_max([tf.cast(ids.bounding_shape()[1], tf.int32) for ids in rows] + [1])


def rows_per_chunk(*limits: tuple) -> Tensor:
    """Returns how many rows fit all bounds, at least 1; `limits` are `(size of a row, bound)`."""
    return tf.reduce_min([tf.maximum(bound // tf.maximum(size, 1), 1) for size, bound in limits])


def in_chunks(
    function: Callable[[Tensor, Tensor], Rows], num_rows: Tensor, chunk_size: Tensor, empty: Rows
) -> Rows:
    """Joins the results of `function(start, end)` for chunks of rows; `empty` has no rows."""

    def extend(start, found):
        end = tf.minimum(start + chunk_size, num_rows)
        new = function(start, end)
        return end, {name: tf.concat([found[name], new[name]], axis=0) for name in found}

    shapes = {name: tf.TensorShape([None, *part.shape[1:]]) for name, part in empty.items()}
    _, found = tf.while_loop(
        lambda start, found: start < num_rows,
        extend,
        (tf.constant(0), empty),
        shape_invariants=(tf.TensorShape([]), shapes),
        parallel_iterations=1,
    )
    return found
