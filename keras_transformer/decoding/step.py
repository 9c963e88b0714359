"""The step function that every search calls, and what is done around a call."""

import numbers
from typing import Any, Protocol

import keras
from keras import ops


class Step(Protocol):
    """One step of a decoder, for all rows of a batch: `step(tokens, rows, state)`.

    A batch of sentences has `width` rows a sentence, those of the first sentence first. The search
    knows nothing of the model beyond this function. If it is given `keep_sentences`, batches get
    smaller from call to call, and `rows` counts the rows that were kept: all that belongs to a
    sentence has to be in `state`.

    Args:
        tokens: int32 `[batch * width]`, the last token of each row; BOS in the first call.
        rows: int32 `[batch * width]` or None. Row r of this call continues row `rows[r]` of the
            call before: the step reorders its caches by it. None means no change.
        state: nest of tensors (dict, tuple, list) whose shapes and dtypes a step does not change.

    Returns:
        `(logits, state)`: float `[batch * width, vocabulary]`, and the new state. The vocabulary
        size is static.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> def step(tokens, rows, state):  # Counts down from the state, then ends with EOS, 3.
    ...     return ops.one_hot(ops.maximum(state, 3), 10), state - 1
    >>> result = GreedySearch()(step, ops.array([6, 4]), max_lengths=[9, 9], max_length=5)
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[6, 5, 4, 3, 0]], [[4, 3, 0, 0, 0]]]
    """

    def __call__(self, tokens: Any, rows: Any, state: Any) -> tuple[Any, Any]: ...


def score_dtype(state):
    """Dtype that log-probabilities are added in: float32, float64 for a state that holds it."""
    dtypes = [
        keras.backend.standardize_dtype(leaf.dtype)
        for leaf in keras.tree.flatten(state)
        if hasattr(leaf, "dtype")
    ]
    return "float64" if "float64" in dtypes else "float32"


def call_step(step, tokens, rows, state, dtype):
    """Calls the step: logits in `dtype` (at least float32), and a state that fits the loop.

    Returns:
        `(logits, state)`: `[rows, vocabulary]`, and the state with the shapes it came with.
    """
    logits, new_state = step(tokens, rows, state)
    if logits.shape[-1] is None:
        raise ValueError(
            "The vocabulary dimension of a step's logits must be static. "
            f"Received: logits.shape={tuple(logits.shape)}"
        )
    return _computed_once(ops.cast(logits, dtype)), keep_shapes(new_state, state)


def _computed_once(logits):
    """The logits, which TensorFlow would otherwise cast anew for every reader of another shape."""
    if keras.config.backend() != "tensorflow":
        return logits
    import tensorflow as tf

    # The graph's optimiser moves a cast behind a change of shape, but nothing across this.
    return tf.ensure_shape(logits, logits.shape)


def keep_shapes(new, old):
    """Gives the tensors of `new` the static shapes of `old`, as a loop's variables must have.

    On TensorFlow a gather with dynamic indices forgets dimensions that were known before, and
    `while_loop` refuses a variable that comes back with a less specific shape.
    """
    return keras.tree.map_structure(_keep_shape, new, old)


def _keep_shape(new, old):
    new = ops.convert_to_tensor(new)
    if new.dtype != old.dtype:
        raise ValueError(
            "A step must return its state in the dtypes it was given. "
            f"Received: dtype={new.dtype} where it was {old.dtype}"
        )
    sizes = list(zip(new.shape, old.shape, ops.shape(new), strict=True))
    if not any(size is None and before is not None for size, before, _ in sizes):
        return new
    # A dimension that was unknown before may grow, as a cache does.
    return ops.reshape(new, [now if before is None else before for _, before, now in sizes])


def log_sum_exp(logits, largest, places=None):
    """Normaliser of each row, by which logits exceed log-probabilities.

    Args:
        logits: float `[rows, vocabulary]`.
        largest: float `[rows, 1]`, each row's maximum, which the caller knows already.
        places: int32 `[rows, 1]`, where it stands, if the caller knows that too.

    Returns:
        Float `[rows, 1]`.
    """
    # The largest probability is exp(largest - normaliser). A softmax is one operation on
    # TensorFlow, where differences, exponentials and sums are three passes over all logits.
    probabilities = ops.softmax(logits, axis=-1)
    if places is None:
        return largest - ops.log(ops.max(probabilities, axis=-1, keepdims=True))
    rows, size = ops.shape(logits)
    first = size * ops.expand_dims(ops.arange(rows, dtype="int32"), 1)  # [rows, 1]
    return largest - ops.log(ops.take(ops.reshape(probabilities, (-1,)), first + places))


def check_limits(max_lengths, max_length):
    """Checks and converts the lengths a search was called with.

    Returns:
        int32 `[batch]`: each sentence's own maximum, at most `max_length`.
    """
    max_lengths = ops.cast(ops.convert_to_tensor(max_lengths), "int32")
    if len(max_lengths.shape) != 1:
        raise ValueError(
            "`max_lengths` must have the shape [batch]. "
            f"Received: max_lengths.shape={tuple(max_lengths.shape)}"
        )
    if isinstance(max_length, int) and max_length < 1:
        raise ValueError(f"`max_length` must be at least 1. Received: max_length={max_length!r}")
    return ops.minimum(max_lengths, max_length)


def check_positive_int(name, value, highest=2**31 - 1):
    """Raises a ValueError unless `value` is an int from 1 to `highest`, by default an int32."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise ValueError(
            f"`{name}` must be an integer >= 1 and at most {highest}. Received: {name}={value!r}"
        )


def checked_number(name, value, lowest, highest):
    """Returns a number as a `float`, or raises a ValueError unless it is in the range.

    A `float` because other numbers, such as NumPy's, change the dtype of what they meet and cannot
    be written to JSON.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not lowest <= value <= highest:
        raise ValueError(
            f"`{name}` must be a number from {lowest:g} to {highest:g}. Received: {name}={value!r}"
        )
    return float(value)
