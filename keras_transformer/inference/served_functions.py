"""`ServedFunctions`: a pipeline as functions of a TensorFlow graph, from text to text."""

import abc
import dataclasses
import functools
import json
from typing import ClassVar

import tensorflow as tf

import keras_transformer
from keras_transformer.data.tokenizer import EOS_ID, PAD_ID
from keras_transformer.decoding import SearchResult, search_to_dict
from keras_transformer.inference.batch_inference import (
    default_batch_size,
    encode_and_search,
    make_constraints,
    one_answer,
    positions_of_stream,
    rounded_up,
)
from keras_transformer.inference.stored_kernels import StoredKernels, StoredTransformer
from keras_transformer.layers.effective_weights import all_maps
from keras_transformer.layers.int8_products import ConstantKernels, quantize_maps
from keras_transformer.layers.tensors import Tensor
from keras_transformer.models.ensemble import copy_of


class ServedFunctions(abc.ABC):
    """Base class of the signatures of a task, which are its methods.

    They compute with a copy of the pipeline's model, in `dtype` (None for the model's), with
    matrices in int8 if `quantization` is "int8". `num_streams` parts of a request are searched at
    the same time. `long_texts`, "split" or "truncate", is for tasks that split texts. `engine`
    searches instead of the model, for functions that are not saved.

    Attributes:
        precision: Name of the dtype policy of the copy.
        inputs: Names of the inputs of each signature, all strings `[batch]`.
        outputs: Name of the output for the best answer, and name of the one for several answers.
        module: `tf.Module` to save, with the weights, the tokenizers and the signatures.
    """

    inputs: dict[str, tuple[str, ...]]
    outputs: ClassVar[tuple[str, str]]

    def __init__(
        self,
        pipeline,
        search,
        dtype=None,
        num_streams=1,
        long_texts="split",
        quantization=None,
        engine=None,
    ):
        self._pipeline, self._num_streams, self._engine = pipeline, num_streams, engine
        self._splits = long_texts == "split"
        if engine is not None:
            engine.check_search(search)
        self._model = copy_of(pipeline.model, dtype, StoredTransformer)
        if quantization is not None:
            quantize_maps(all_maps(self._model))
        int8_kernels = ConstantKernels(all_maps(self._model))
        self.precision = self._model.dtype_policy.name
        self._best, self._several = one_answer(search), search
        if getattr(search, "n_best", None) == 1:  # One answer for each beam.
            self._several = dataclasses.replace(search, n_best=search.beam_size)
        self._settings = {
            "library_version": keras_transformer.__version__,
            "precision": self.precision,
            "search": search_to_dict(search),
            "max_source_length": pipeline.max_source_length,
            "extra_length": pipeline.extra_length,
            "num_streams": num_streams,
        }
        kernels = StoredKernels(self._model, num_streams)
        self.module = module = tf.Module(name="translator")
        # The model is no attribute: TensorFlow would save its optimizer, and each weight twice.
        module.model_variables = kernels.variables
        module.source_tokenizer = module.target_tokenizer = pipeline.source_tokenizer.in_graph()
        if pipeline.target_tokenizer is not pipeline.source_tokenizer:
            module.target_tokenizer = pipeline.target_tokenizer.in_graph()
        for name, inputs in self.inputs.items():
            signature = [tf.TensorSpec([None], tf.string, name=text) for text in inputs]
            method = int8_kernels.used_in(_with_weights(getattr(self, name), kernels))
            function = tf.function(method, input_signature=signature, autograph=False)
            setattr(module, name, function)

    def serving_default(
        self, text: Tensor, source_language: Tensor = None, target_language: Tensor = None
    ) -> dict[str, Tensor]:
        languages = source_language, target_language
        (answers, scores), truncated = self._answer(text, self._best, languages)
        return {self.outputs[0]: answers[:, 0], "score": scores[:, 0], "truncated": truncated}

    def n_best(
        self, text: Tensor, source_language: Tensor = None, target_language: Tensor = None
    ) -> dict[str, Tensor]:
        languages = source_language, target_language
        (answers, scores), truncated = self._answer(text, self._several, languages)
        return {self.outputs[1]: answers, "scores": scores, "truncated": truncated}

    @abc.abstractmethod
    def _answer(self, text, search, languages):
        """Returns the result of `_search`, and bool `[batch]`: whether each source was cut.

        `languages` are strings `[batch]` of source and target, or None for a model without.
        """

    def _limits(self, text):
        """Returns the outputs of the signature `limits` that all tasks share."""
        lengths = self.module.source_tokenizer.tokenize(text).row_lengths()
        num_tokens = tf.cast(lengths, tf.int32) + 1  # with EOS
        longest = self._pipeline.max_source_length
        return {
            "num_tokens": num_tokens,
            "max_source_tokens": tf.fill(tf.shape(text), longest),
            "truncated": num_tokens > longest,
            "settings": tf.fill(tf.shape(text), json.dumps(self._settings)),
        }

    def _search(self, sources, lengths, search, write, constrain=None, beginnings=None, terms=None):
        """Returns the answers and the scores `[batch, n]` of ragged sources.

        The rows are sorted by the length of source and answer, longest first, and searched in
        chunks, `num_streams` at the same time. `lengths` is the argument of `Pipeline.max_lengths`.
        `write(tokens, scores)` returns the answers `[batch, n]`; `constrain(lengths)` returns a
        constraint for some rows. The answers begin with `beginnings`, int32 `[batch, length]`, and
        contain `terms`, int32 `[batch, terms, length]`.
        """
        pipeline, longest_position = self._pipeline, self._model.config.max_length
        limits = pipeline.max_lengths(lengths)
        source_lengths = tf.cast(sources.row_lengths(), tf.int32)
        positions = search.width * (source_lengths + limits)
        order = tf.argsort(positions, direction="DESCENDING", stable=True)
        positions = tf.gather(positions, order)
        longest_limit = tf.reduce_max(tf.concat([limits, [1]], axis=0))
        max_positions = positions_of_stream(pipeline.max_batch_tokens, self._num_streams)
        max_rows = default_batch_size(search.width)
        starts = starts_of_chunks(positions, max_positions, max_rows, self._num_streams)

        def search_chunk(chunk):
            rows, options = order[starts[chunk] : starts[chunk + 1]], {}
            if search.is_random:
                seed = (search.seed + tf.cast(starts[chunk], tf.int64)) % 2**31
                options["seed"] = tf.cast(seed, tf.int32)
            source = tf.gather(sources, rows)
            of_task = None if constrain is None else constrain(tf.gather(lengths, rows))
            prefixes = None if beginnings is None else tf.gather(beginnings, rows)
            num_given = 0 if beginnings is None else beginnings.shape[1]
            terms_here = None if terms is None else tf.gather(terms, rows)
            options["constraints"] = make_constraints(
                pipeline.target_tokenizer, of_task, prefixes, num_given, terms_here
            )
            length = rounded_up(tf.reduce_max(tf.gather(source_lengths, rows)))
            if longest_position is not None:
                length = tf.minimum(length, longest_position)
            source = padded(source, length)
            if (shortlist := getattr(pipeline, "shortlist", None)) is not None:
                given = [tf.reshape(ids, [-1]) for ids in (prefixes, terms_here) if ids is not None]
                listed = tf.concat([[PAD_ID], *given], axis=0)
                options["token_ids"] = shortlist.token_ids_in_graph(source, listed)
            limits_here = tf.gather(limits, rows)
            if self._engine is None:
                result = encode_and_search(self._model, source, limits_here, search, **options)
            else:
                result = _search_with(self._engine, source, limits_here, search, prefixes)
            missing = longest_limit - tf.shape(result.tokens)[2]
            tokens = tf.pad(result.tokens, [[0, 0], [0, 0], [0, missing]], constant_values=PAD_ID)
            return tf.cast(result.scores, tf.float32), tokens

        num_answers = getattr(search, "n_best", search.width)

        def search_chunks():
            # A chunk must not have side effects: TensorFlow would run the chunks one by one.
            types = (
                tf.RaggedTensorSpec([None, num_answers], tf.float32, ragged_rank=0),
                tf.RaggedTensorSpec([None, num_answers, None], tf.int32, ragged_rank=0),
            )
            options = {"parallel_iterations": self._num_streams, "fn_output_signature": types}
            results = tf.map_fn(search_chunk, tf.range(tf.size(starts) - 1), **options)
            return tuple(tf.gather(result.values, tf.argsort(order)) for result in results)

        def no_answers():
            return tf.zeros([0, num_answers]), tf.zeros([0, num_answers, 1], tf.int32)

        scores, tokens = tf.cond(tf.size(order) > 0, search_chunks, no_answers)
        scores = tf.where((lengths == 0)[:, None], 0.0, scores)
        return write(tokens, scores), scores


def _search_with(engine, source, limits, search, prefixes):
    """Returns the `SearchResult` of an engine in Python, which no SavedModel can hold."""

    def run(source, limits, *prefixes):
        source = [row[row != PAD_ID].tolist() for row in source]
        return engine.search(source, limits.tolist(), search, *(ids.tolist() for ids in prefixes))

    inputs = [source, limits] if prefixes is None else [source, limits, prefixes]
    types = tf.int32, tf.float32, tf.float32, tf.int32
    tokens, *others = tf.numpy_function(run, inputs, types, stateful=False)
    num_answers = getattr(search, "n_best", 1)
    others = [tf.ensure_shape(other, [None, num_answers]) for other in others]
    return SearchResult(tf.ensure_shape(tokens, [None, num_answers, None]), *others)


def _with_weights(method, kernels):
    """Returns `method` as a function that reads the weights once, before all loops."""

    @functools.wraps(method)
    def function(*texts):
        # Requests with other shapes than the signature's would fail later with obscure errors.
        # A model of one pair of languages may have None for them.
        texts = [tf.ensure_shape(text, [None]) for text in texts if text is not None]
        rule = "There must be as many strings in each input."
        sizes = [tf.shape(text) for text in texts]
        checks = [tf.debugging.assert_equal(size, sizes[0], rule) for size in sizes[1:]]
        with tf.control_dependencies(checks):
            texts = [tf.identity(text) for text in texts]
        with kernels.read_once():
            return method(*texts)

    return function


def starts_of_chunks(positions, max_positions, max_rows, num_streams):
    """Returns the index of the first row of each chunk, followed by the number of rows.

    `positions` has the maximum length of source plus answers of each row, in descending order.
    """
    num_rows = tf.size(positions)
    # A small request is divided evenly among the streams.
    sizes = max_positions // positions
    sizes = tf.clip_by_value(sizes, 1, tf.minimum(max_rows, -(-num_rows // num_streams)))

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


def encode(tokenizer, text, max_length):
    """Returns ragged ids `[batch, None]` with EOS, and bool `[batch]`: whether a text was cut."""
    ids = tf.cast(tokenizer.tokenize(text), tf.int32)
    is_cut = ids.row_lengths() > max_length - 1
    ends = tf.fill([tf.shape(text)[0], 1], EOS_ID)
    return tf.concat([ids[:, : max_length - 1], ends], axis=1), is_cut


def padded(ids, length=None):
    """Returns ragged ids padded to int32 `[batch, length]`; None pads to the longest row."""
    return ids.to_tensor(PAD_ID, shape=None if length is None else tf.stack([-1, length]))
