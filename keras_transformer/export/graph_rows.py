"""Rows of a request in the graph: their ids, and chunks of them."""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_transformer.data.special_tokens import EOS_ID, PAD_ID
from keras_transformer.layers.dtypes import Tensor

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
