"""A constraint that gives hypotheses their beginning."""

from keras import ops

from keras_transformer.decoding.constraints.constraint import Generated
from keras_transformer.layers.checks import check_rank
from keras_transformer.layers.dtypes import Tensor


class ForcedPrefix:
    """Makes every hypothesis of a sentence begin with that sentence's prefix.

    Prefixes are data of a call, so this constraint is given to the search's call, not to the
    search. The prefix wins over the constraints before it: its tokens come even if these ruled them
    out, with the model's log-probability. A prefix longer than the sentence's maximum length is
    cut there.

    Args:
        ids: int32 `[batch, length]`, padded at the end; a row of padding is an empty prefix.
        pad_id: Id of the padding.

    Raises:
        ValueError: If `ids` does not have two dimensions.

    Example:

    >>> from keras_transformer.decoding import ForcedPrefix, GreedySearch
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 1, 0, 0]] * 2), state)
    >>> prefix = ForcedPrefix(ops.array([[5, 4], [0, 0]]))
    >>> result = GreedySearch()(step, (), [4, 4], max_length=4, constraints=[prefix])
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[5, 4, 3, 0]], [[3, 0, 0, 0]]]
    """

    def __init__(self, ids: Tensor, pad_id: int = 0) -> None:
        self.ids = ops.cast(ops.convert_to_tensor(ids), "int32")
        self.pad_id = pad_id
        check_rank("ids", self.ids, "[batch, length]")

    def start(self, max_lengths: Tensor, width: int) -> Tensor:
        end = ops.full((ops.shape(max_lengths)[0], 1), self.pad_id, dtype="int32")
        return ops.repeat(ops.concatenate([self.ids, end], axis=1), width, axis=0)

    def __call__(
        self, state: Tensor, log_probabilities: Tensor, generated: Generated
    ) -> tuple[Tensor, Tensor]:
        place = ops.minimum(generated.length, ops.shape(state)[1] - 1)
        wanted = ops.expand_dims(ops.take(state, place, axis=1), -1)  # [rows, 1]
        is_wanted = ops.equal(ops.arange(log_probabilities.shape[-1], dtype="int32"), wanted)
        forced = ops.where(is_wanted, generated.log_probabilities, float("-inf"))
        has_prefix = ops.not_equal(wanted, self.pad_id)
        return state, ops.where(has_prefix, forced, log_probabilities)
