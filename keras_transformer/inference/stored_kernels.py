"""`StoredTransformer`: a `Transformer` that computes with the kernels of a SavedModel.

They are stored transposed and joined, and multiplied in parts. In bfloat16 with AMX, the product of
a transposed kernel and a few columns is the fastest, because oneDNN copies a kernel in Keras' own
order at every call. A step that decodes one sentence mostly reads weights, so several threads read
the parts of a large product at the same time.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.layers.effective_weights import is_plain
from keras_transformer.layers.tensors import at_least_float32
from keras_transformer.models import Ensemble, Transformer
from keras_transformer.models.processor import has_amx
from keras_transformer.models.saved_weights import stored_weights

# Minimum number of elements per thread (about 20 us of work).
_MIN_PART_SIZE = 2**17
# Searches of more rows run several at a time, which already keeps all threads busy.
_MAX_ROWS_OF_PARTS = 8
# The maps of a layer, by name; those in one tuple have the same inputs.
_SELF_ATTENTION = ("query", "key", "value"), ("output",)
_CROSS_ATTENTION = ("query",), ("key", "value"), ("output",)
_FEED_FORWARD = ("inner",), ("outer",)


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
        # Functions that are traced at the same time would take each other's tensors.
        self._lock = threading.RLock()
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
        with self._lock:
            for matrix in self._matrices:
                matrix.value = tf.convert_to_tensor(matrix.variable)
            values = [(weight, tf.convert_to_tensor(weight.value)) for weight in self._weights]
            with keras.StatelessScope(values):
                yield

    def wrap_maps(self, layer: Any, groups: tuple[tuple[str, ...], ...]) -> None:
        """Wraps the maps of a layer; those of a group are computed by one product if they can."""
        for names in groups:
            maps = {f"{name}_dense": getattr(layer, f"{name}_dense") for name in names}
            # A quantized map, and one with LoRA, computes its kernel itself.
            maps = {name: dense for name, dense in maps.items() if is_plain(dense)}
            kernels = [dense.kernel for dense in maps.values()]
            matrices = [self._matrix_of.get(id(kernel)) for kernel in kernels]
            products = {m: _Product(self, m, kernels) for m in matrices if m is not None}
            for (name, dense), matrix in zip(maps.items(), matrices, strict=True):
                setattr(layer, name, _StoredDense(self, dense, products.get(matrix)))

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
