"""A constraint on the minimum length."""

import dataclasses

from keras import ops

from keras_transformer.decoding.constraints.saved_constraint import SavedConstraint
from keras_transformer.layers.checks import check_positive_integer


@dataclasses.dataclass(frozen=True)
class MinimumLength(SavedConstraint, name="minimum_length"):
    """Rules out EOS until it would be the `length`-th token.

    A sentence whose own maximum is smaller may end there.

    Args:
        length: Minimum number of tokens of a hypothesis, EOS counted, as in `max_lengths`.

    Raises:
        ValueError: If `length` is not a positive integer.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, MinimumLength
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 2, 1]]), state)  # EOS first
    >>> search = GreedySearch(constraints=[MinimumLength(3)])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[9], max_length=9).tokens)[0, 0].tolist()
    [4, 4, 3, 0, 0, 0, 0, 0, 0]
    """

    length: int

    def __post_init__(self) -> None:
        check_positive_integer("length", self.length, 2**31 - 1)

    def _ruled_out(self, generated, vocabulary):
        fewest = ops.minimum(generated.max_lengths, self.length)  # [rows]
        is_early = ops.expand_dims(generated.length + 1 < fewest, -1)  # [rows, 1]
        is_eos = ops.equal(ops.arange(vocabulary), generated.eos_id)
        return ops.logical_and(is_early, is_eos)  # [rows, vocabulary]
