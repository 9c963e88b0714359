"""Linear maps that read kernels as a SavedModel stores them: transposed, joined, in parts.

In bfloat16 with AMX, the product of a transposed kernel and a few columns is the fastest, because
oneDNN copies a kernel in Keras' own order at every call. A step that decodes one sentence mostly
reads weights, so several threads read the parts of a large product at the same time.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.models import Ensemble, Transformer
from keras_transformer.models.weight_files import has_amx, stored_weights

# Minimum number of elements per thread (about 20 us of work).
_MIN_PART_SIZE = 2**17
# Searches of more rows run several at a time, which already keeps all threads busy.
_MAX_ROWS_OF_PARTS = 8
# The maps of a layer, by name; those in one tuple have the same inputs.
_SELF_ATTENTION = ("query", "key", "value"), ("output",)
_CROSS_ATTENTION = ("query",), ("key", "value"), ("output",)
_FEED_FORWARD = ("inner",), ("outer",)


class StoredKernels:
    """The variables of a SavedModel, and the linear maps that read them.

    `model` is a copy for the export, whose linear maps are replaced. `num_parts` is the maximum
    number of parallel parts of a product of few rows.
    """

    def __init__(self, model: Transformer | Ensemble, num_parts: int = 1) -> None:
        self._weights, groups = stored_weights(model)
        self._matrices = [_Matrix(kernels) for kernels in groups]
        self._matrix_of: dict[int, Any] = {k: m for m in self._matrices for k in m.rows_of}
        self._num_parts = num_parts
        self._is_decoding_step = False
        for transformer in getattr(model, "models", [model]):
            self._replace_maps(transformer)
            transformer.decode_step = self._as_step(transformer.decode_step)

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

    def _replace_maps(self, transformer):
        for embedding in (transformer.source_embedding, transformer.target_embedding):
            if embedding.embedding.quantization_mode is None:
                embedding.project = functools.partial(self._project, embedding)
        for block in transformer.encoder.blocks:
            self._replace(block.attention, _SELF_ATTENTION)
            self._replace(block.feed_forward, _FEED_FORWARD)
        for block in transformer.decoder.blocks:
            self._replace(block.self_attention, _SELF_ATTENTION)
            self._replace(block.cross_attention, _CROSS_ATTENTION)
            self._replace(block.feed_forward, _FEED_FORWARD)

    def _replace(self, layer, groups):
        """Replaces the maps of a layer, those of each group by one product if they can be."""
        for names in groups:
            maps = [getattr(layer, f"{name}_dense") for name in names]
            # A quantized map, and one with LoRA, computes its kernel itself.
            if any(dense.quantization_mode or dense.lora_enabled for dense in maps):
                continue
            kernels = [dense.kernel for dense in maps]
            matrices = [self._matrix_of.get(id(kernel)) for kernel in kernels]
            products = {m: _Product(self, m, kernels) for m in matrices if m is not None}
            for name, dense, matrix in zip(names, maps, matrices, strict=True):
                setattr(layer, f"{name}_dense", _StoredDense(self, dense, products.get(matrix)))

    def _project(self, embedding, rows, embeddings=None):
        """Returns the logits of rows; it replaces `TiedEmbedding.project`."""
        matrix, bias = embedding.output_weights(embeddings)
        transpose = tf.cast(tf.convert_to_tensor(matrix), rows.dtype)
        if self._is_decoding_step:
            logits = self.multiply(rows, transpose)
        else:
            logits = tf.matmul(rows, transpose, transpose_b=True)
        return logits if bias is None else self.add_bias(logits, tf.cast(bias, logits.dtype))

    def _as_step(self, decode_step):
        """Returns `decode_step` with the products that are fast for few rows."""

        @functools.wraps(decode_step)
        def step(*args, **kwargs):
            self._is_decoding_step = True
            try:
                return decode_step(*args, **kwargs)
            finally:
                self._is_decoding_step = False

        return step

    def multiply(self, rows, transpose):
        """Returns `[rows, output_dim]`, the product of rows and the transpose of a matrix."""
        if self._is_decoding_step:
            return multiply_few_rows(rows, transpose, self._num_parts)
        # As batches of one: a plain product of a few MB runs on one thread in TensorFlow.
        return tf.matmul(rows[None], transpose[None], transpose_b=True)[0]

    def add_bias(self, outputs, bias):
        """Returns the sum of `[rows, output_dim]` and `[output_dim]`."""
        if not self._is_decoding_step:
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
    """Replaces a `keras.layers.Dense` of the model; `product` is None if it reads its kernel."""

    def __init__(self, stored, dense, product):
        self.stored, self.dense, self.product = stored, dense, product

    @property
    def kernel(self):
        """The kernel, `[input_dim, units]`."""
        if self.product is None:
            return self.dense.kernel
        start, end = self.product.rows_of[id(self.dense.kernel)]
        return tf.transpose(self.product.matrix.value[start:end])

    def __call__(self, rows):
        dense = self.dense
        if self.product is None:
            outputs = tf.matmul(rows, tf.convert_to_tensor(dense.kernel))
        else:
            outputs = self.product.of(rows, dense.kernel)
        if dense.bias is not None:
            outputs = self.stored.add_bias(outputs, tf.cast(dense.bias, outputs.dtype))
        return outputs if dense.activation is None else dense.activation(outputs)
