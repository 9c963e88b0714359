"""A constraint against repeated n-grams."""

import dataclasses

from keras import ops

from keras_transformer.decoding.constraints.saved_constraint import SavedConstraint, token_sets
from keras_transformer.layers.checks import check_positive_integer

# Each token before the last of an n-gram adds operations to the graph.
_LARGEST_SIZE = 100


@dataclasses.dataclass(frozen=True)
class NoRepeatNgrams(SavedConstraint, name="no_repeat_ngrams"):
    """Rules out each token that would complete an n-gram which the hypothesis has already.

    Tokens are subwords: a small `size` also forbids what a language needs to repeat; 3 or 4 is
    usual.

    Args:
        size: n, from 1 to 100; with 1 no token comes twice.

    Raises:
        ValueError: If `size` is not such an integer.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, NoRepeatNgrams
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 1, 3, 2]]), state)
    >>> search = GreedySearch(constraints=[NoRepeatNgrams(2)])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[6], max_length=6).tokens).tolist()
    [[[4, 4, 5, 4, 3, 0]]]

    Reference: Paulus et al. (2018), section 2.5, https://arxiv.org/abs/1705.04304.
    """

    size: int

    def __post_init__(self) -> None:
        check_positive_integer("size", self.size, _LARGEST_SIZE)

    def _ruled_out(self, generated, vocabulary):
        tokens, length = generated.tokens, generated.length
        rows, max_length = ops.shape(tokens)
        num_before = self.size - 1
        # Place p of `padded` holds token p - (n - 1): a token follows places p .. p + n - 2. The
        # first tokens follow ids that do not exist, and so match nothing that follows a token.
        nothing = ops.full((rows, num_before), -1, dtype="int32")
        padded = ops.concatenate([nothing, tokens], axis=1)  # [rows, max_length + n - 1]
        places = ops.arange(max_length, dtype="int32")
        is_repeated = ops.broadcast_to(places < length, (rows, max_length))
        for offset in range(num_before):
            before = padded[:, offset : offset + max_length]  # [rows, max_length]
            before_next = ops.expand_dims(ops.take(padded, length + offset, axis=1), -1)
            is_repeated = ops.logical_and(is_repeated, ops.equal(before, before_next))
        return token_sets(tokens, is_repeated, vocabulary)
