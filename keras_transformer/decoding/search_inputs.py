"""Inputs of a search, as one object."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.step import Step, log_sum_exp
from keras_transformer.layers.dtypes import Tensor


class SearchInputs(NamedTuple):
    """Inputs of one search, checked.

    Attributes:
        step: A `Step`.
        state: State of the step before the first call.
        limits: int32 `[batch]`, each sentence's maximum length, at most `max_length`.
        max_length: Length of the result, an int or an int32 scalar.
        bos_id, eos_id, pad_id: Ids that begin, end and fill a hypothesis.
        keep_sentences: As in `Search.__call__`.
        dtype: Dtype of the scores.
        normalizer: `normalizer(logits, largest, places=None)`, the amount by which the logits of
            the step exceed log-probabilities, as `log_sum_exp`.
        is_constrained: Whether there are constraints, which may leave a hypothesis nothing.
    """

    step: Step
    state: Any
    limits: Tensor
    max_length: Any
    bos_id: int
    eos_id: int
    pad_id: int
    keep_sentences: Callable | None
    dtype: str
    normalizer: Callable = log_sum_exp
    is_constrained: bool = False


def checked_limits(max_lengths: Tensor, max_length: Any) -> Tensor:
    """Returns each sentence's own maximum, int32 `[batch]`, at most `max_length`."""
    max_lengths = ops.cast(ops.convert_to_tensor(max_lengths), "int32")
    if len(max_lengths.shape) != 1:
        raise ValueError(
            "`max_lengths` must have the shape [batch]. "
            f"Received: max_lengths.shape={tuple(max_lengths.shape)}"
        )
    if isinstance(max_length, int) and max_length < 1:
        raise ValueError(f"`max_length` must be at least 1. Received: max_length={max_length!r}")
    return ops.minimum(max_lengths, max_length)
