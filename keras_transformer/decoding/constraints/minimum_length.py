"""No end before a number of tokens."""

import dataclasses

from keras import ops

from keras_transformer.decoding.step import check_positive_int


@dataclasses.dataclass(frozen=True)
class MinimumLength:
    """Rules out EOS until it would be the `length`-th token.

    A sentence whose own maximum is smaller may end there.

    Args:
        length: the fewest tokens of a hypothesis, EOS counted, as in `max_lengths`.

    Raises:
        ValueError: if `length` is not a positive integer.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, MinimumLength
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 2, 1]]), state)  # EOS first
    >>> search = GreedySearch(constraints=[MinimumLength(3)])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[9], max_length=9).tokens)[0, 0].tolist()
    [4, 4, 3, 0, 0, 0, 0, 0, 0]
    """

    length: int

    def __post_init__(self):
        check_positive_int("length", self.length)

    def start(self, max_lengths, width):
        del max_lengths, width
        return ()

    def __call__(self, state, log_probabilities, generated):
        fewest = ops.minimum(generated.max_lengths, self.length)  # [rows]
        is_early = ops.expand_dims(generated.length + 1 < fewest, -1)  # [rows, 1]
        is_eos = ops.equal(ops.arange(log_probabilities.shape[-1]), generated.eos_id)
        is_out = ops.logical_and(is_early, is_eos)  # [rows, vocabulary]
        return state, ops.where(is_out, float("-inf"), log_probabilities)
