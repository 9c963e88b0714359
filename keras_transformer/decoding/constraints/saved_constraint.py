"""Base of constraints that are saved with a search."""

from typing import Any

from keras import ops

from keras_transformer.decoding.constraints.constraint import Generated
from keras_transformer.decoding.named_settings import NamedSettings
from keras_transformer.layers.dtypes import Tensor


class SavedConstraint(NamedSettings, kind="constraint"):
    """Base of constraints that have only settings, and no state.

    Most of them rule tokens out: `_ruled_out(generated, vocabulary)` is a mask that broadcasts to
    `[rows, vocabulary]`.
    """

    def start(self, max_lengths: Tensor, width: int) -> tuple:
        return ()

    def __call__(
        self, state: tuple, log_probabilities: Tensor, generated: Generated
    ) -> tuple[tuple, Tensor]:
        is_out = self._ruled_out(generated, log_probabilities.shape[-1])
        return state, ops.where(is_out, float("-inf"), log_probabilities)

    @classmethod
    def dict_of(cls, constraint: Any) -> dict:
        if type(constraint) not in cls._members.values():
            names = [member.__name__ for member in cls._members.values()]
            raise ValueError(
                f"Constraints that can be saved are {names}; give others to each call. "
                f"Received: {constraint!r}"
            )
        return constraint.to_dict()


def token_sets(tokens: Tensor, is_in: Tensor, vocabulary: int) -> Tensor:
    """Returns the set of tokens of each row as a mask, bool `[rows, vocabulary]`.

    `is_in`, bool `[rows, length]`, says which of `tokens` are in the set.
    """
    rows, length = ops.shape(tokens)
    # Other tokens go to a column of their own, which is cut off.
    columns = ops.where(is_in, tokens, vocabulary)  # [rows, length]
    first_places = (vocabulary + 1) * ops.arange(rows, dtype="int32")
    places = ops.reshape(columns + ops.expand_dims(first_places, -1), (-1, 1))  # [rows * length, 1]
    marks = ops.scatter_update(
        ops.zeros((rows * (vocabulary + 1),), dtype="int32"),
        places,
        ops.ones((rows * length,), dtype="int32"),
    )
    return ops.reshape(marks, (rows, vocabulary + 1))[:, :vocabulary] > 0
