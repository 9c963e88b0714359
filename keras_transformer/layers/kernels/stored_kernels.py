"""Kernels as a SavedModel stores them: transposed, several in a matrix, multiplied in parts.

In bfloat16 with AMX, the product of a transposed kernel and a few columns is the fastest, because
oneDNN copies a kernel in Keras' own order at every call. A step that decodes one sentence mostly
reads weights, so several threads read the parts of a large product at the same time.
"""

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import math
import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.kernels.shapes import is_decoding_step, reshape

# Minimum number of elements per thread (about 20 us of work).
_MIN_PART_SIZE = 2**17
# Searches of more rows run several at a time, which already keeps all threads busy.
_MAX_ROWS_OF_PARTS = 8


@dataclasses.dataclass(frozen=True)
class StoredTranspose:
    """Place of the transpose of a kernel, rows `start` to `end - 1` of a matrix."""

    matrix: Any  # a variable [rows, input_dim] of the compute dtype
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class _Storage:
    transposes: Mapping
    num_parts: int


_NOTHING_STORED = _Storage(types.MappingProxyType({}), num_parts=1)
_STORAGE = contextvars.ContextVar("storage", default=_NOTHING_STORED)


@contextlib.contextmanager
def stored_kernels(transposes: Mapping[int, StoredTranspose], num_parts: int = 1) -> Iterator[None]:
    """Makes projections read kernels from other variables, on TensorFlow.

    Args:
        transposes: Dict from the `id` of a kernel to its `StoredTranspose`. Kernels that follow
            each other in one matrix are multiplied at once if their inputs are the same.
        num_parts: Maximum number of parallel parts that a product of few rows is split into.
    """
    token = _STORAGE.set(_Storage(transposes, num_parts))
    try:
        yield
    finally:
        _STORAGE.reset(token)


def stored_variables(
    model: Any, for_amx: bool | None = None
) -> tuple[list, dict[int, StoredTranspose]]:
    """Returns the variables that a SavedModel holds, and the `StoredTranspose`s by kernel id.

    `for_amx` says whether they are for a processor with AMX; None for this processor.
    """
    transposes = _transposes(model, has_amx() if for_amx is None else for_amx)
    others = [weight.value for weight in model.weights if id(weight) not in transposes]
    # A matrix that several kernels share is saved once.
    matrices = {id(stored.matrix): stored.matrix for stored in transposes.values()}
    return [*others, *matrices.values()], transposes


def _transposes(model, for_amx):
    import tensorflow as tf

    # Without AMX, small kernels are faster in Keras' own order; large ones are read in parts.
    smallest = 1 if for_amx else 2 * _MIN_PART_SIZE
    groups = []
    for weight in model.weights:
        if not weight.name.endswith("_kernel") or math.prod(weight.shape) < smallest:
            continue
        # Products with transposed kernels are faster only in bfloat16.
        if keras.backend.standardize_dtype(weight.dtype) != "bfloat16":
            continue
        # Queries, keys and values of self-attention are one product.
        is_next = weight.name in ("key_kernel", "value_kernel")
        if is_next and groups and groups[-1][0].shape[0] == weight.shape[0]:
            groups[-1].append(weight)
        else:
            groups.append([weight])
    stored = {}
    for kernels in groups:
        rows = [tf.transpose(kernel.value) for kernel in kernels]
        matrix = tf.Variable(tf.concat(rows, axis=0), trainable=False)
        ends = itertools.accumulate(map(len, rows))
        for kernel, some, end in zip(kernels, rows, ends, strict=True):
            stored[id(kernel)] = StoredTranspose(matrix, end - len(some), end)
    return stored


def places_of(kernels: Sequence[Tensor]) -> list[StoredTranspose] | None:
    """Returns the `StoredTranspose`s of kernels if each has one, or None."""
    places = [_STORAGE.get().transposes.get(id(kernel)) for kernel in kernels]
    return None if None in places else places


def multiply_by_stored(inputs: Tensor, places: list[StoredTranspose]) -> list[Tensor]:
    """Returns the product of `[..., input_dim]` with each kernel, as `[rows, output_dim]`."""
    if not _are_together(places):
        return [multiply_by_stored(inputs, [place])[0] for place in places]
    rows = reshape(inputs, (-1, inputs.shape[-1]))
    start, end = places[0].start, places[-1].end
    transpose = ops.convert_to_tensor(places[0].matrix)
    if (start, end) != (0, transpose.shape[0]):
        transpose = transpose[start:end]
    if is_decoding_step(inputs):
        product = multiply_few_rows(rows, transpose)
    else:
        import tensorflow as tf

        # As batches of one: a plain product of a few MB runs on one thread in TensorFlow.
        product = tf.matmul(rows[None], transpose[None], transpose_b=True)[0]
    if len(places) == 1:
        return [product]
    return ops.split(product, [place.end - start for place in places[:-1]], axis=-1)


def multiply_few_rows(rows: Tensor, transpose: Tensor) -> Tensor:
    """Returns `[rows, output_dim]`, the product of a few rows and the transpose of a matrix.

    `transpose`, `[output_dim, input_dim]`, is the first factor, in its own memory order; the small
    product is then transposed back. This is cheaper, except in bfloat16 without AMX.
    """
    is_half = keras.backend.standardize_dtype(rows.dtype) == "bfloat16"
    matrix_first = has_amx() or not is_half
    columns = ops.transpose(rows) if matrix_first else None

    def multiply(part):
        if matrix_first:
            return ops.transpose(ops.matmul(part, columns))
        return ops.matmul(rows, ops.transpose(part))

    output_dim, input_dim = transpose.shape
    # Only the embeddings of a shortlist, which are few, have no static number of rows.
    num_parts = min(_STORAGE.get().num_parts, (output_dim or 0) * input_dim // _MIN_PART_SIZE)
    if num_parts < 2:
        return multiply(transpose)
    transpose = ops.cast(ops.convert_to_tensor(transpose), rows.dtype)
    limits = [number * output_dim // num_parts for number in range(num_parts + 1)]

    def multiply_parts():
        # TensorFlow runs these in parallel, because none depends on another.
        parts = [multiply(transpose[start:end]) for start, end in itertools.pairwise(limits)]
        return ops.concatenate(parts, axis=-1)

    are_few = ops.shape(rows)[0] <= _MAX_ROWS_OF_PARTS
    return ops.cond(are_few, multiply_parts, lambda: multiply(transpose))


@functools.cache
def has_amx() -> bool:
    """Returns whether the processor multiplies bfloat16 matrices with AMX; False if unknown."""
    flags = pathlib.Path("/proc/cpuinfo")
    return flags.exists() and "amx_bf16" in flags.read_text()


def _are_together(places):
    pairs = itertools.pairwise(places)
    return all(one.matrix is two.matrix and one.end == two.start for one, two in pairs)
