"""`ServedFunctions`: a pipeline as functions of a TensorFlow graph, from text to text."""

import abc
import dataclasses
import functools
import json
from typing import ClassVar

import tensorflow as tf

import keras_transformer
from keras_transformer.data.tokenizer import EOS_ID, PAD_ID
from keras_transformer.decoding import search_to_dict
from keras_transformer.inference.batch_inference import (
    default_batch_size,
    encode_and_search,
    one_answer,
    rounded_up,
)
from keras_transformer.inference.shortlist import SIZES
from keras_transformer.inference.stored_kernels import StoredKernels, StoredTransformer
from keras_transformer.layers.tensors import Tensor
from keras_transformer.models.ensemble import copy_of


class ServedFunctions(abc.ABC):
    """Base class of the signatures of a task, which are its methods.

    They compute with a copy of the pipeline's model in `dtype`, None for the model's. `num_streams`
    parts of a request are searched at the same time.

    Attributes:
        precision: Name of the dtype policy of the copy.
        inputs: Names of the inputs of each signature, all strings `[batch]`.
        outputs: Name of the output for the best answer, and name of the one for several answers.
        module: `tf.Module` to save, with the weights, the tokenizers and the signatures.
    """

    inputs: ClassVar[dict[str, tuple[str, ...]]]
    outputs: ClassVar[tuple[str, str]]

    def __init__(self, pipeline, search, dtype=None, num_streams=1):
        self._pipeline, self._num_streams = pipeline, num_streams
        self._model = copy_of(pipeline.model, dtype, StoredTransformer)
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
            method = _with_weights(getattr(self, name), kernels)
            function = tf.function(method, input_signature=signature, autograph=False)
            setattr(module, name, function)

    def serving_default(self, text: Tensor) -> dict[str, Tensor]:
        (answers, scores), truncated = self._answer(text, self._best)
        return {self.outputs[0]: answers[:, 0], "score": scores[:, 0], "truncated": truncated}

    def n_best(self, text: Tensor) -> dict[str, Tensor]:
        (answers, scores), truncated = self._answer(text, self._several)
        return {self.outputs[1]: answers, "scores": scores, "truncated": truncated}

    @abc.abstractmethod
    def _answer(self, text, search):
        """Returns the result of `_search`, and bool `[batch]`: whether each source was cut."""

    def _encode_source(self, text):
        return encode(self.module.source_tokenizer, text, self._pipeline.max_source_length)

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

    def _search(self, sources, lengths, search, write, constrain=None):
        """Returns the answers and the scores `[batch, n]` of ragged sources.

        The rows are sorted by length, longest first, and searched in chunks, `num_streams` at the
        same time. `lengths` is the argument of `Pipeline.max_lengths`. `write(tokens, scores)`
        returns the answers `[batch, n]`; `constrain(lengths)` returns a constraint for some rows.
        """
        pipeline, longest_position = self._pipeline, self._model.config.max_length
        limits = pipeline.max_lengths(lengths)
        source_lengths = tf.cast(sources.row_lengths(), tf.int32)
        order = tf.argsort(source_lengths, direction="DESCENDING", stable=True)
        longest_limit = tf.reduce_max(tf.concat([limits, [1]], axis=0))
        positions = search.width * (tf.gather(source_lengths, order) + longest_limit)
        max_positions = pipeline.max_batch_tokens // self._num_streams
        max_rows = default_batch_size(search.width)
        starts = starts_of_chunks(positions, max_positions, max_rows, self._num_streams)

        def search_chunk(chunk):
            rows, options = order[starts[chunk] : starts[chunk + 1]], {}
            if search.is_random:
                seed = (search.seed + tf.cast(starts[chunk], tf.int64)) % 2**31
                options["seed"] = tf.cast(seed, tf.int32)
            if constrain is not None:
                options["constraints"] = [constrain(tf.gather(lengths, rows))]
            source = tf.gather(sources, rows)
            length = rounded_up(source_lengths[rows[0]])
            if longest_position is not None:
                length = tf.minimum(length, longest_position)
            source = padded(source, length)
            options["token_ids"] = token_ids(getattr(pipeline, "shortlist", None), source)
            limits_here = tf.gather(limits, rows)
            result = encode_and_search(self._model, source, limits_here, search, **options)
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


def _with_weights(method, kernels):
    """Returns `method` as a function that reads the weights once, before all loops."""

    @functools.wraps(method)
    def function(*texts):
        # Requests with other shapes than the signature's would fail later with obscure errors.
        texts = [tf.ensure_shape(text, [None]) for text in texts]
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


def token_ids(shortlist, source):
    """Returns `Shortlist.token_ids` for sources, int32 `[batch, length]`; None for all tokens."""
    if shortlist is None or shortlist.vocab_size < SIZES[0]:
        return None
    candidates = tf.reshape(tf.gather(shortlist.candidates, source), [-1])
    listed = tf.concat([shortlist.frequent, candidates], axis=0)[:, None]
    is_listed = tf.zeros([shortlist.vocab_size], tf.bool)
    is_listed = tf.tensor_scatter_nd_update(is_listed, listed, tf.fill([tf.size(listed)], True))
    sizes = tf.constant(SIZES)
    num_listed = tf.reduce_sum(tf.cast(is_listed, tf.int32))
    large_enough = tf.boolean_mask(sizes, sizes >= num_listed)
    size = tf.minimum(tf.reduce_min(large_enough), shortlist.vocab_size)
    others = tf.where(~is_listed)[: size - num_listed]
    return tf.sort(tf.cast(tf.concat([tf.where(is_listed), others], axis=0)[:, 0], tf.int32))
