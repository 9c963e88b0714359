"""The step function that every search calls, and the loop around it."""

from collections.abc import Callable
from typing import Any, Protocol

import keras
from keras import ops

from keras_transformer.layers.caches import take_rows
from keras_transformer.layers.dtypes import Tensor

# Maximum number of steps between two calls of `keep_sentences`, which merges growing caches.
_STEPS_IN_A_ROUND = 32


class Step(Protocol):
    """One step of a decoder, for all rows of a batch: `step(tokens, rows, state)`.

    A batch has `width` rows for each sentence, sentence-major. The search knows the model only
    through this function. With `keep_sentences`, batches get smaller during a search, and `rows`
    counts the rows that were kept: `state` must hold everything that belongs to a sentence.

    Args:
        tokens: int32 `[batch * width]`, the last token of each row; BOS in the first call.
        rows: int32 `[batch * width]` or None. Row r of this call continues row `rows[r]` of the
            call before: the step must reorder its caches accordingly. None means no change.
        state: Nest of tensors (dict, tuple, list) whose shapes and dtypes a step does not change.

    Returns:
        `(logits, state)`: float `[batch * width, vocabulary]`, and the new state. The vocabulary
        size is static. On TensorFlow, greedy and beam search without constraints also accept a
        dynamic size, of at least 512.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> def step(tokens, rows, state):  # Counts down from the state, then ends with EOS, 3.
    ...     return ops.one_hot(ops.maximum(state, 3), 10), state - 1
    >>> result = GreedySearch()(step, ops.array([6, 4]), max_lengths=[9, 9], max_length=5)
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[6, 5, 4, 3, 0]], [[4, 3, 0, 0, 0]]]
    """

    def __call__(self, tokens: Any, rows: Any, state: Any) -> tuple[Any, Any]: ...


def call_step(
    step: Step, tokens: Tensor, rows: Tensor | None, state: Any, dtype: str
) -> tuple[Tensor, Any]:
    """Returns the logits of a step in `dtype`, and the new state with the shapes of the old one."""
    logits, new_state = step(tokens, rows, state)
    logits = ops.cast(logits, dtype)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        # The graph optimizer moves a cast past a change of shape, so that every reader of another
        # shape would cast again. It moves nothing past `ensure_shape`.
        logits = tf.ensure_shape(logits, logits.shape)
    return logits, keep_shapes(new_state, state)


def check_static_vocabulary(logits: Tensor) -> None:
    """Raises a ValueError unless the last dimension of logits is static."""
    if logits.shape[-1] is None:
        raise ValueError(
            "With constraints or sampling, the vocabulary dimension of a step's logits must be "
            f"static. Received: logits.shape={tuple(logits.shape)}"
        )


def keep_shapes(new: Any, old: Any) -> Any:
    """Returns the tensors of `new` with the static shapes of `old`, as `while_loop` requires.

    On TensorFlow a gather with dynamic indices forgets dimensions that were known before, and
    `while_loop` refuses a variable that comes back with a less specific shape.
    """
    return keras.tree.map_structure(_keep_shape, new, old)


def _keep_shape(new, old):
    new = ops.convert_to_tensor(new)
    if new.dtype != old.dtype:
        rule = "A step must return its state in the dtypes it was given"
        raise ValueError(f"{rule}. Received: dtype={new.dtype} where it was {old.dtype}")
    sizes = list(zip(new.shape, old.shape, strict=True))
    if any(size is None and before is not None for size, before in sizes):
        # Only on TensorFlow. A reshape would compute the other sizes at every step.
        new.set_shape(old.shape)
    return new


def log_sum_exp(logits: Tensor, largest: Tensor, places: Tensor | None = None) -> Tensor:
    """Returns `logsumexp(logits)` of each row, shape `[rows, 1]`.

    `largest` is the maximum of each row, `[rows, 1]`; `places` are the ids of the maxima, if known.
    """
    # The largest probability is exp(largest - log_sum_exp). A softmax is one operation on
    # TensorFlow, where differences, exponentials and sums are three passes over all logits.
    probabilities = ops.softmax(logits, axis=-1)
    if places is None:
        return largest - ops.log(ops.max(probabilities, axis=-1, keepdims=True))
    rows, size = ops.shape(logits)
    first = size * ops.expand_dims(ops.arange(rows, dtype="int32"), 1)  # [rows, 1]
    return largest - ops.log(ops.take(ops.reshape(probabilities, (-1,)), first + places))


def run_search(
    extend: Callable, search: Any, state: Any, keep_sentences: Callable | None = None
) -> Any:
    """Calls `extend(search, state) -> (search, state)` until all is done, and returns the search.

    The search is a named tuple of scalars and of tensors with the leading axis `batch`. Its
    `is_done`, bool `[batch]` or `[batch, width]`, marks final answers, which `extend` must keep;
    its `index` counts the steps. `keep_sentences` is called after each round of steps.
    """
    # Shapes are static on JAX.
    if keep_sentences is None or keras.config.backend() == "jax":
        search, _ = ops.while_loop(_is_any_left, extend, (search, state))
        return search
    places = ops.arange(ops.shape(search.is_done)[0], dtype="int32")

    # Two loops rather than conditions inside the step, which would slow down every step.
    # `found` has the answers of all sentences, `left` the search for those that are not done.
    def extend_for_a_round(found, places, left, state):
        end = left.index + _STEPS_IN_A_ROUND

        def goes_on(left, _):
            # If at most half of the sentences go on, copying them soon pays off.
            is_done = _is_done(left)
            are_most_left = 2 * _num_left(is_done) > ops.shape(is_done)[0]
            return ops.logical_and(are_most_left, left.index < end)

        left, state = ops.while_loop(goes_on, extend, (left, state))
        indices = ops.expand_dims(places, 1)

        def put(old, new):
            return ops.scatter_update(old, indices, new) if len(old.shape) else new

        found = keras.tree.map_structure(put, found, left)
        kept = _sentences_to_keep(_is_done(left))
        left = take_rows(left, kept)
        return found, take_rows(places, kept), left, keep_shapes(keep_sentences(state, kept), state)

    found, *_ = _shrinking_loop(
        lambda found, places, left, state: _is_any_left(left, state),
        extend_for_a_round,
        (search, places, search, state),
    )
    return keep_shapes(found, search)


def _is_done(search):
    """Returns whether all rows of a sentence are final, bool `[batch]`."""
    return search.is_done if len(search.is_done.shape) == 1 else ops.all(search.is_done, axis=1)


def _is_any_left(search, *_):
    return ops.logical_not(ops.all(search.is_done))


def _num_left(is_done):
    return ops.sum(ops.cast(ops.logical_not(is_done), "int32"))


def _sentences_to_keep(is_done):
    """Returns the places of the sentences that go on, and of others up to a power of two.

    TensorFlow's oneDNN compiles a kernel for each shape, so there should be few.
    """
    powers = ops.array([2**exponent for exponent in range(31)], dtype="int32")
    num_kept = ops.min(ops.where(powers >= _num_left(is_done), powers, 2**30))
    first = ops.argsort(ops.cast(is_done, "int32"))  # Those that go on come first.
    return ops.cast(first[:num_kept], "int32")


def _shrinking_loop(condition, body, variables):
    """`ops.while_loop` over variables whose leading axis gets shorter."""
    if keras.config.backend() != "tensorflow":
        return ops.while_loop(condition, body, variables)
    import tensorflow as tf

    shapes = keras.tree.map_structure(
        lambda leaf: tf.TensorShape([None, *leaf.shape[1:]] if len(leaf.shape) else []), variables
    )
    return tf.while_loop(condition, body, variables, shape_invariants=shapes)
