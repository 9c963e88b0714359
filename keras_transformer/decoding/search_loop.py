"""The loop of every search, whose batch the finished sentences leave."""

import keras
from keras import ops


def run_search(extend, search, state, keep_sentences=None):
    """Calls `extend` until all sentences are done.

    Args:
        extend: `extend(search, state) -> (search, state)`, one step.
        search: named tuple of tensors with the leading axis `batch`, or scalars. `is_done`, bool
            `[batch]` or `[batch, width]`, says what is final: `extend` does not change it.
        state: the step's state, a nest of tensors.
        keep_sentences: as of `BeamSearch`.

    Returns:
        The search at its end.
    """
    # Shapes are static on JAX.
    if keep_sentences is None or keras.config.backend() == "jax":
        search, _ = ops.while_loop(_is_any_left, extend, (search, state))
        return search
    places = ops.arange(ops.shape(search.is_done)[0], dtype="int32")

    # Two loops rather than a condition inside of the step, which every step would pay for.
    def extend_until_few_are_left(everything, places, search, state):
        search, state = ops.while_loop(_are_most_left, extend, (search, state))
        everything = _put(everything, places, search)
        left = ops.cast(ops.nonzero(ops.logical_not(_is_done(search)))[0], "int32")
        search = keras.tree.map_structure(lambda leaf: _take(leaf, left), search)
        return everything, _take(places, left), search, keep_sentences(state, left)

    everything, *_ = _shrinking_loop(
        lambda everything, places, search, state: _is_any_left(search, state),
        extend_until_few_are_left,
        (search, places, search, state),
    )
    return everything


def _is_done(search):
    """Whether all of a sentence is final, bool `[batch]`."""
    return search.is_done if len(search.is_done.shape) == 1 else ops.all(search.is_done, axis=1)


def _is_any_left(search, state):
    del state
    return ops.logical_not(ops.all(search.is_done))


def _are_most_left(search, state):
    """Whether more than half of the sentences go on: what leaving costs, few steps pay then."""
    del state
    is_done = _is_done(search)
    num_left = ops.sum(ops.cast(ops.logical_not(is_done), "int32"))
    return 2 * num_left > ops.shape(is_done)[0]


def _put(everything, places, search):
    """Writes the sentences of a search to their places among all."""

    def put(old, new):
        if not len(old.shape):
            return new
        return ops.scatter_update(old, ops.expand_dims(places, 1), new)

    return keras.tree.map_structure(put, everything, search)


def _take(leaf, sentences):
    return ops.take(leaf, sentences, axis=0) if len(leaf.shape) else leaf


def _shrinking_loop(condition, body, variables):
    """`ops.while_loop` over variables whose leading axis gets shorter."""
    if keras.config.backend() != "tensorflow":
        return ops.while_loop(condition, body, variables)
    import tensorflow as tf

    shapes = keras.tree.map_structure(
        lambda leaf: tf.TensorShape([None, *leaf.shape[1:]] if len(leaf.shape) else []), variables
    )
    return tf.while_loop(condition, body, variables, shape_invariants=shapes)
