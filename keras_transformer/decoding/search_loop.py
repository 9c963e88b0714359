"""The loop of every search; finished sentences leave its batch."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding.step import keep_shapes
from keras_transformer.layers.caches import take_rows


def run_search(
    extend: Callable, search: Any, state: Any, keep_sentences: Callable | None = None
) -> Any:
    """Returns the search after calls of `extend(search, state) -> (search, state)`, one a step.

    A search is a named tuple of tensors with the leading axis `batch`, or scalars. Its `is_done`,
    bool `[batch]` or `[batch, width]`, marks final answers: `extend` does not change them.
    """
    # Shapes are static on JAX.
    if keep_sentences is None or keras.config.backend() == "jax":
        search, _ = ops.while_loop(_is_any_left, extend, (search, state))
        return search
    places = ops.arange(ops.shape(search.is_done)[0], dtype="int32")

    # Two loops rather than a condition inside the step, which would slow down every step.
    # `found` has the answers of all sentences, `left` the search for those that are not done.
    def extend_until_few_are_left(found, places, left, state):
        left, state = ops.while_loop(_are_most_left, extend, (left, state))
        found = _put(found, places, left)
        kept = ops.cast(ops.nonzero(ops.logical_not(_is_done(left)))[0], "int32")
        left = take_rows(left, kept)
        return found, take_rows(places, kept), left, keep_shapes(keep_sentences(state, kept), state)

    found, *_ = _shrinking_loop(
        lambda found, places, left, state: _is_any_left(left, state),
        extend_until_few_are_left,
        (search, places, search, state),
    )
    return keep_shapes(found, search)


def _is_done(search):
    """Returns whether all rows of a sentence are final, bool `[batch]`."""
    return search.is_done if len(search.is_done.shape) == 1 else ops.all(search.is_done, axis=1)


def _is_any_left(search, *_):
    return ops.logical_not(ops.all(search.is_done))


def _are_most_left(search, *_):
    """Returns whether more than half go on; with fewer, copying their state soon pays off."""
    is_done = _is_done(search)
    num_left = ops.sum(ops.cast(ops.logical_not(is_done), "int32"))
    return 2 * num_left > ops.shape(is_done)[0]


def _put(found, places, left):
    """Returns the search of all sentences, with the results of those left at their places."""

    def put(old, new):
        is_scalar = not len(old.shape)
        return new if is_scalar else ops.scatter_update(old, ops.expand_dims(places, 1), new)

    return keras.tree.map_structure(put, found, left)


def _shrinking_loop(condition, body, variables):
    """`ops.while_loop` over variables whose leading axis gets shorter."""
    if keras.config.backend() != "tensorflow":
        return ops.while_loop(condition, body, variables)
    import tensorflow as tf

    shapes = keras.tree.map_structure(
        lambda leaf: tf.TensorShape([None, *leaf.shape[1:]] if len(leaf.shape) else []), variables
    )
    return tf.while_loop(condition, body, variables, shape_invariants=shapes)
