"""Rows of a request in the graph: their ids, and how many are worked on at once."""

import itertools

import tensorflow as tf

from keras_transformer.data.special_tokens import EOS_ID, PAD_ID

# Bounds a chunk of rows: padded positions of source and target.
MAX_TOKENS = 32_768


def encode(tokenizer, text, max_length):
    """Tokenizes: ragged int32 `[batch, None]` with EOS, and bool `[batch]`, whether it was cut."""
    ids = tf.cast(tokenizer.tokenize(text), tf.int32)
    is_cut = ids.row_lengths() > max_length - 1
    ends = tf.fill([tf.shape(text)[0], 1], EOS_ID)
    return tf.concat([ids[:, : max_length - 1], ends], axis=1), is_cut


def padded(ids, length=None):
    """Ragged ids as int32 `[batch, length]`, or as long as the longest row."""
    dense = ids.to_tensor(PAD_ID)  # [batch, longest]
    if length is None:
        return dense
    return tf.pad(dense, [[0, 0], [0, length - tf.shape(dense)[1]]], constant_values=PAD_ID)


def longest_row(*rows):
    """The most ids in a row of any of the ragged tensors, at least 1."""
    return tf.reduce_max([tf.cast(ids.bounding_shape()[1], tf.int32) for ids in rows] + [1])


def rows_per_chunk(*limits):
    """The most rows, at least 1, whose `(size of a row, bound)` all hold."""
    return tf.reduce_min([tf.maximum(bound // tf.maximum(size, 1), 1) for size, bound in limits])


def chunk_seed(search, start):
    """Returns the `seed` option of a chunk of rows, its own for each; none unless a search draws.

    Args:
        search: a search of `keras_transformer.decoding`.
        start: int32 scalar, the number of the chunk's first row in the request.

    Returns:
        Dict of options of the search's call.
    """
    if not hasattr(search, "seed"):
        return {}
    return {"seed": tf.cast((search.seed + tf.cast(start, tf.int64)) % 2**31, tf.int32)}


def in_chunks(function, num_rows, chunk_size, empty, num_streams=1):
    """Joins what a function gives for one chunk of rows after the other.

    Args:
        function: `function(start, end)`, the range of rows, to a dict of tensors `[rows, ...]`.
        num_rows: int32 scalar.
        chunk_size: int32 scalar, the most rows that are worked on at a time.
        empty: what the function gives for no row.
        num_streams: chunks that are worked on at the same time; rows are shared out evenly.

    Returns:
        Dict of tensors `[num_rows, ...]`.
    """
    if num_streams == 1:
        return _in_turn(function, 0, num_rows, chunk_size, empty)
    share = -(-num_rows // num_streams)
    chunk_size = tf.maximum(chunk_size // num_streams, 1)

    # A function, so that the graph holds it once.
    @tf.function(autograph=False)
    def stream(start, end):
        return _in_turn(function, start, end, chunk_size, empty)

    limits = [tf.minimum(number * share, num_rows) for number in range(num_streams + 1)]
    # TensorFlow runs side by side what neither waits for another nor writes a variable.
    found = [stream(*pair) for pair in itertools.pairwise(limits)]
    return {name: tf.concat([part[name] for part in found], axis=0) for name in empty}


def _in_turn(function, first, last, chunk_size, empty):
    """What the function gives for the rows from `first` to `last`, chunk by chunk."""

    def extend(start, found):
        end = tf.minimum(start + chunk_size, last)
        new = function(start, end)
        return end, {name: tf.concat([found[name], new[name]], axis=0) for name in found}

    shapes = {name: [None, *tensor.shape[1:]] for name, tensor in empty.items()}
    invariants = tf.TensorShape([]), {name: tf.TensorShape(shapes[name]) for name in shapes}
    _, found = tf.while_loop(
        lambda start, found: start < last,
        extend,
        (tf.convert_to_tensor(first), empty),
        shape_invariants=invariants,
        parallel_iterations=1,
    )
    return found
