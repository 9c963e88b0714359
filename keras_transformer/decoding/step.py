"""The step function that every search calls, and helpers around its call."""

from typing import Any, Protocol

import keras
from keras import ops

from keras_transformer.layers.dtypes import Tensor


class Step(Protocol):
    """One step of a decoder, for all rows of a batch: `step(tokens, rows, state)`.

    A batch has `width` rows for each sentence, sentence-major. The search knows nothing of the
    model beyond this function. With `keep_sentences`, batches get smaller from call to call, and
    `rows` counts the rows that were kept: `state` has to hold all that belongs to a sentence.

    Args:
        tokens: int32 `[batch * width]`, the last token of each row; BOS in the first call.
        rows: int32 `[batch * width]` or None. Row r of this call continues row `rows[r]` of the
            call before: the step reorders its caches by it. None means no change.
        state: Nest of tensors (dict, tuple, list) whose shapes and dtypes a step does not change.

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


def score_dtype(state: Any) -> str:
    """Returns the dtype of scores: float64 if the state holds such tensors, else float32."""
    dtypes = [
        keras.backend.standardize_dtype(leaf.dtype)
        for leaf in keras.tree.flatten(state)
        if hasattr(leaf, "dtype")
    ]
    return "float64" if "float64" in dtypes else "float32"


def call_step(
    step: Step, tokens: Tensor, rows: Tensor | None, state: Any, dtype: str
) -> tuple[Tensor, Any]:
    """Returns the logits of a step in `dtype`, and the state in the shapes that it had."""
    logits, new_state = step(tokens, rows, state)
    if logits.shape[-1] is None:
        raise ValueError(
            "The vocabulary dimension of a step's logits must be static. "
            f"Received: logits.shape={tuple(logits.shape)}"
        )
    logits = ops.cast(logits, dtype)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        # Or every reader of another shape casts again: the graph's optimiser moves a cast past a
        # change of shape, but nothing past this.
        logits = tf.ensure_shape(logits, logits.shape)
    return logits, keep_shapes(new_state, state)


def keep_shapes(new: Any, old: Any) -> Any:
    """Returns the tensors of `new` with the static shapes of `old`, as a loop demands.

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


def log_sum_exp(logits: Tensor, largest: Tensor, places: Tensor | None = None) -> Tensor:
    """Returns `logsumexp(logits)` of each row, shape `[rows, 1]`.

    `largest` is each row's maximum, `[rows, 1]`, and `places` are their ids, if they are known.
    """
    # The largest probability is exp(largest - normaliser). A softmax is one operation on
    # TensorFlow, where differences, exponentials and sums are three passes over all logits.
    probabilities = ops.softmax(logits, axis=-1)
    if places is None:
        return largest - ops.log(ops.max(probabilities, axis=-1, keepdims=True))
    rows, size = ops.shape(logits)
    first = size * ops.expand_dims(ops.arange(rows, dtype="int32"), 1)  # [rows, 1]
    return largest - ops.log(ops.take(ops.reshape(probabilities, (-1,)), first + places))
