"""`ServedFunctions`: a pipeline as functions of a TensorFlow graph, from text to text.

Their linear maps read kernels as a SavedModel stores them: transposed, joined, in parts. In
bfloat16 with AMX, the product of a transposed kernel and a few columns is the fastest, because
oneDNN copies a kernel in Keras' own order at every call. A step that decodes one sentence mostly
reads weights, so several threads read the parts of a large product at the same time.
"""

import abc
import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import keras
import tensorflow as tf

import keras_transformer
from keras_transformer.data.tokenizer import EOS_ID, PAD_ID
from keras_transformer.decoding import SearchResult, search_to_dict
from keras_transformer.inference.batch_inference import (
    default_batch_size,
    encode_and_search,
    make_constraints,
    one_answer,
    rounded_up,
)
from keras_transformer.layers.effective_weights import all_maps, is_plain
from keras_transformer.layers.int8_products import ConstantKernels, quantize_maps
from keras_transformer.layers.tensors import Tensor, at_least_float32
from keras_transformer.models import Ensemble, Transformer
from keras_transformer.models.ensemble import copy_of
from keras_transformer.models.weight_files import has_amx, stored_weights

# Minimum number of elements per thread (about 20 us of work).
_MIN_PART_SIZE = 2**17
# Searches of more rows run several at a time, which already keeps all threads busy.
_MAX_ROWS_OF_PARTS = 8
# The maps of a layer, by name; those in one tuple have the same inputs.
_SELF_ATTENTION = ("query", "key", "value"), ("output",)
_CROSS_ATTENTION = ("query",), ("key", "value"), ("output",)
_FEED_FORWARD = ("inner",), ("outer",)


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

        The rows are sorted by length, longest first, and searched in chunks, `num_streams` at the
        same time. `lengths` is the argument of `Pipeline.max_lengths`. `write(tokens, scores)`
        returns the answers `[batch, n]`; `constrain(lengths)` returns a constraint for some rows.
        The answers begin with `beginnings`, int32 `[batch, length]`, and contain `terms`, int32
        `[batch, terms, length]`.
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
            source = tf.gather(sources, rows)
            of_task = None if constrain is None else constrain(tf.gather(lengths, rows))
            prefixes = None if beginnings is None else tf.gather(beginnings, rows)
            num_given = 0 if beginnings is None else beginnings.shape[1]
            terms_here = None if terms is None else tf.gather(terms, rows)
            options["constraints"] = make_constraints(
                pipeline.target_tokenizer, of_task, prefixes, num_given, terms_here
            )
            length = rounded_up(source_lengths[rows[0]])
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


class StoredTransformer(Transformer):
    """A copy of a `Transformer` whose linear maps compute with `StoredKernels`.

    Make it with `copy_of`, and give it its kernels by `use`.
    """

    def use(self, kernels: "StoredKernels") -> None:
        """Computes with these kernels instead of those of the layers from now on."""
        self.stored_kernels = kernels
        for block in self.encoder.blocks:
            kernels.wrap_maps(block.attention, _SELF_ATTENTION)
            kernels.wrap_maps(block.feed_forward, _FEED_FORWARD)
        for block in self.decoder.blocks:
            kernels.wrap_maps(block.self_attention, _SELF_ATTENTION)
            kernels.wrap_maps(block.cross_attention, _CROSS_ATTENTION)
            kernels.wrap_maps(block.feed_forward, _FEED_FORWARD)

    def decode_step(self, *args: Any, **kwargs: Any) -> tuple:
        self.stored_kernels.are_few_rows = True
        try:
            return super().decode_step(*args, **kwargs)
        finally:
            self.stored_kernels.are_few_rows = False

    def next_logits(self, states: Any, embeddings: Any = None) -> Any:
        layer = self.target_embedding
        if layer.embedding.quantization_mode is not None:
            return super().next_logits(states, embeddings)
        matrix, bias = layer.output_weights(embeddings)
        rows = tf.reshape(states, [-1, layer.d_model])
        logits = self.stored_kernels.multiply(rows, tf.cast(matrix, rows.dtype))
        if bias is not None:
            logits = self.stored_kernels.add_bias(logits, tf.cast(bias, logits.dtype))
        return tf.cast(logits, at_least_float32(logits.dtype))


class StoredKernels:
    """The variables of a SavedModel, and products with them.

    `model` is a `StoredTransformer` or an `Ensemble` of some. `num_parts` is the maximum number of
    parallel parts of a product of few rows.
    """

    def __init__(self, model: StoredTransformer | Ensemble, num_parts: int = 1) -> None:
        self._weights, groups = stored_weights(model)
        self._matrices = [_Matrix(kernels) for kernels in groups]
        self._matrix_of: dict[int, Any] = {k: m for m in self._matrices for k in m.rows_of}
        self._num_parts = num_parts
        # Whether products are computed in the way that is fast for few rows.
        self.are_few_rows = False
        for transformer in getattr(model, "models", [model]):
            transformer.use(self)

    @property
    def variables(self) -> list:
        """The variables, in the order of `stored_weights`."""
        weights = [weight.value for weight in self._weights]
        return weights + [matrix.variable for matrix in self._matrices]

    @contextlib.contextmanager
    def read_once(self) -> Iterator[None]:
        """Reads the variables at the beginning of a `with` block, before all loops.

        TensorFlow runs the iterations of a loop in parallel only if they read no variables.
        """
        for matrix in self._matrices:
            matrix.value = tf.convert_to_tensor(matrix.variable)
        values = [(weight, tf.convert_to_tensor(weight.value)) for weight in self._weights]
        with keras.StatelessScope(values):
            yield

    def wrap_maps(self, layer: Any, groups: tuple[tuple[str, ...], ...]) -> None:
        """Wraps the maps of a layer; those of a group are computed by one product if they can."""
        for names in groups:
            maps = [getattr(layer, f"{name}_dense") for name in names]
            # A quantized map, and one with LoRA, computes its kernel itself.
            if not all(map(is_plain, maps)):
                continue
            kernels = [dense.kernel for dense in maps]
            matrices = [self._matrix_of.get(id(kernel)) for kernel in kernels]
            products = {m: _Product(self, m, kernels) for m in matrices if m is not None}
            for name, dense, matrix in zip(names, maps, matrices, strict=True):
                setattr(layer, f"{name}_dense", _StoredDense(self, dense, products.get(matrix)))

    def multiply(self, rows, transpose):
        """Returns `[rows, output_dim]`, the product of rows and the transpose of a matrix."""
        if self.are_few_rows:
            return multiply_few_rows(rows, transpose, self._num_parts)
        # These are batches of one: TensorFlow runs a plain product of a few MB on one thread.
        return tf.matmul(rows[None], transpose[None], transpose_b=True)[0]

    def add_bias(self, outputs, bias):
        """Returns the sum of `[rows, output_dim]` and `[output_dim]`."""
        if not self.are_few_rows:
            return tf.nn.bias_add(outputs, bias)
        # TensorFlow fuses a product and the bias after it, which is faster for many rows, but
        # reorders the kernel at every call, which costs more than the product of a few rows.
        return tf.squeeze(tf.nn.bias_add(tf.expand_dims(outputs, 1), bias), 1)


def multiply_few_rows(rows, transpose, num_parts):
    """Returns `[rows, output_dim]`, the product of a few rows and the transpose of a matrix.

    The transpose, `[output_dim, input_dim]`, is the first factor, in its own memory order, and the
    small product is transposed back. This is cheaper, except in bfloat16 without AMX.
    """
    matrix_first = has_amx() or rows.dtype != tf.bfloat16
    columns = tf.transpose(rows) if matrix_first else None

    def multiply(part):
        if matrix_first:
            return tf.transpose(tf.matmul(part, columns))
        return tf.matmul(rows, part, transpose_b=True)

    output_dim, input_dim = transpose.shape
    # Only the embeddings of a shortlist, which are few, have no static number of rows.
    num_parts = min(num_parts, (output_dim or 0) * input_dim // _MIN_PART_SIZE)
    if num_parts < 2:
        return multiply(transpose)
    limits = [number * output_dim // num_parts for number in range(num_parts + 1)]

    def multiply_parts():
        # TensorFlow runs these in parallel, because none depends on another.
        parts = [multiply(transpose[start:end]) for start, end in itertools.pairwise(limits)]
        return tf.concat(parts, axis=-1)

    are_few = tf.shape(rows)[0] <= _MAX_ROWS_OF_PARTS
    return tf.cond(are_few, multiply_parts, lambda: multiply(transpose))


class _Matrix:
    """A variable with the transposes of kernels, one after the other."""

    def __init__(self, kernels):
        transposes = [tf.transpose(kernel.value) for kernel in kernels]
        self.variable = tf.Variable(tf.concat(transposes, axis=0), trainable=False)
        self.value = None  # The tensor of the variable in the function that is traced.
        ends = list(itertools.accumulate(kernel.shape[1] for kernel in kernels))
        limits = itertools.pairwise([0, *ends])
        self.rows_of = {id(kernel): rows for kernel, rows in zip(kernels, limits, strict=True)}


class _Product:
    """The product of rows and adjacent kernels of a matrix, computed once."""

    def __init__(self, stored, matrix, kernels):
        self.stored, self.matrix = stored, matrix
        self.rows_of = {id(k): matrix.rows_of[id(k)] for k in kernels if id(k) in matrix.rows_of}
        self.last_rows: Any = None
        self.outputs: dict[int, Any] = {}

    def of(self, rows, kernel):
        """Returns the product of the rows and one of the kernels."""
        if rows is not self.last_rows:
            limits, transpose = list(self.rows_of.values()), self.matrix.value
            start, end = limits[0][0], limits[-1][1]
            if (start, end) != (0, transpose.shape[0]):
                transpose = transpose[start:end]
            product = self.stored.multiply(rows, transpose)
            sizes = [end - start for start, end in limits]
            outputs = [product] if len(sizes) == 1 else tf.split(product, sizes, axis=-1)
            self.last_rows = rows
            self.outputs = dict(zip(self.rows_of, outputs, strict=True))
        return self.outputs[id(kernel)]


class _StoredDense:
    """Wraps a `keras.layers.Dense` of the model; `product` is None if it reads its own kernel."""

    def __init__(self, stored, dense, product):
        self.stored, self.dense, self.product = stored, dense, product

    @property
    def kernel(self):
        """A matrix of the layer, from which `empty_cache` computes a length."""
        return self.dense.kernel if self.product is None else self.product.matrix.value

    def __call__(self, rows):
        dense = self.dense
        if self.product is None:
            outputs = tf.matmul(rows, tf.convert_to_tensor(dense.kernel))
        else:
            outputs = self.product.of(rows, dense.kernel)
        if dense.bias is not None:
            outputs = self.stored.add_bias(outputs, tf.cast(dense.bias, outputs.dtype))
        return outputs if dense.activation is None else dense.activation(outputs)
