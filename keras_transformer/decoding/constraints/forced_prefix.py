"""Hypotheses that go on from a given beginning."""

from keras import ops


class ForcedPrefix:
    """Makes every hypothesis of a sentence begin with that sentence's prefix.

    Prefixes are data of a call, so this constraint is given to the search's call, not to the
    search. The prefix wins over the constraints before it: a token of it that they ruled out comes
    nevertheless, with the model's log-probability. A prefix longer than the sentence's maximum
    length is cut there.

    Args:
        ids: int32 `[batch, length]`, padded at the end; nothing but padding is no prefix.
        pad_id: the padding.

    Raises:
        ValueError: if `ids` has not two dimensions.

    Example:

    >>> from keras_transformer.decoding import ForcedPrefix, GreedySearch
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 1, 0, 0]] * 2), state)
    >>> prefix = ForcedPrefix(ops.array([[5, 4], [0, 0]]))
    >>> result = GreedySearch()(step, (), [4, 4], max_length=4, constraints=[prefix])
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[5, 4, 3, 0]], [[3, 0, 0, 0]]]
    """

    def __init__(self, ids, pad_id=0):
        self.ids = ops.cast(ops.convert_to_tensor(ids), "int32")
        self.pad_id = pad_id
        if len(self.ids.shape) != 2:
            raise ValueError(
                "`ids` must have the shape [batch, length]. "
                f"Received: ids.shape={tuple(self.ids.shape)}"
            )

    def start(self, max_lengths, width):
        end = ops.full((ops.shape(max_lengths)[0], 1), self.pad_id, dtype="int32")
        return ops.repeat(ops.concatenate([self.ids, end], axis=1), width, axis=0)

    def __call__(self, state, log_probabilities, generated):
        place = ops.minimum(generated.length, ops.shape(state)[1] - 1)
        wanted = ops.expand_dims(ops.take(state, place, axis=1), -1)  # [rows, 1]
        is_wanted = ops.equal(ops.arange(log_probabilities.shape[-1], dtype="int32"), wanted)
        forced = ops.where(is_wanted, generated.log_probabilities, float("-inf"))
        has_prefix = ops.not_equal(wanted, self.pad_id)
        return state, ops.where(has_prefix, forced, log_probabilities)
