"""`JoinedTrees`, the constraint of searches among trees in the joined form."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.constraints import Generated
from keras_transformer.layers.tensors import Tensor, check_shape


class _State(NamedTuple):
    words_left: Tensor  # int32 [rows]
    depth: Tensor  # int32 [rows], the number of open constituents


class JoinedTrees:
    """Constrains each hypothesis to one joined symbol for each word of its sentence, and EOS.

    Only the last word may close the root, which it does without a bracket. A sentence whose maximum
    length is below its number of words plus 1 has no hypothesis.

    Args:
        num_words: int32 `[batch]`, the number of words of each sentence.
        openings, closings: int32 `[vocabulary]`, the number of constituents that a token opens and
            closes.
        words: bool `[vocabulary]`, whether a token is a joined symbol.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> from keras_transformer.parsing import JoinedTrees
    >>> step = lambda tokens, parents, state: (ops.array([[9.0, 9, 9, 8, 1, 2, 3]]), state)
    >>> trees = JoinedTrees(  # 4 is "(S", 5 "XX", and 6 ")"
    ...     num_words=[3],
    ...     openings=[0, 0, 0, 0, 1, 0, 0],
    ...     closings=[0, 0, 0, 0, 0, 0, 1],
    ...     words=np.arange(7) >= 4,
    ... )
    >>> result = GreedySearch()(step, (), [5], max_length=5, constraints=[trees])
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[4, 5, 5, 3, 0]]]
    """

    def __init__(
        self, num_words: Tensor, openings: np.ndarray, closings: np.ndarray, words: np.ndarray
    ):
        self.num_words = ops.cast(ops.convert_to_tensor(num_words), "int32")
        check_shape("num_words", self.num_words, "[batch]")
        self._words, self._closings = np.asarray(words, bool), np.asarray(closings, "int32")
        self._changes = np.asarray(openings, "int32") - self._closings  # of the depth

    def start(self, max_lengths: Tensor, width: int) -> _State:
        del max_lengths
        words_left = ops.repeat(self.num_words, width)  # [rows]
        return _State(words_left, ops.zeros_like(words_left))

    def __call__(
        self, state: _State, log_probabilities: Tensor, generated: Generated
    ) -> tuple[_State, Tensor]:
        is_eos = np.arange(len(self._words)) == generated.eos_id
        has_closings = self._closings > 0
        changes, is_word, is_eos, has_closings = (
            ops.convert_to_tensor(array)
            for array in (self._changes, self._words, is_eos, has_closings)
        )  # [vocabulary]
        was_word = ops.take(is_word, generated.last_tokens, axis=0)  # [rows]
        words_left = state.words_left - ops.cast(was_word, "int32")
        # A dead row may have any tokens, so its depth is clipped.
        depth = ops.maximum(state.depth + ops.take(changes, generated.last_tokens, axis=0), 0)
        # Without room for the words that are left and EOS, the row dies.
        has_room = generated.length + words_left + 1 <= generated.max_lengths
        left, depth_after = ops.expand_dims(words_left, -1), ops.expand_dims(depth, -1) + changes
        stays_open = (depth_after > 0) & ((left > 1) | ~has_closings)
        allowed = ops.where(left > 0, stays_open & is_word, is_eos)
        allowed = allowed & ops.expand_dims(has_room, -1)
        return _State(words_left, depth), ops.where(allowed, log_probabilities, float("-inf"))
