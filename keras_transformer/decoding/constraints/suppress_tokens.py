"""A constraint that rules tokens out."""

import dataclasses

import numpy as np

from keras_transformer.decoding.constraints.saved_constraint import SavedConstraint


@dataclasses.dataclass(frozen=True)
class SuppressTokens(SavedConstraint, name="suppress_tokens"):
    """Rules out tokens; `SuppressTokens([1])` rules out the unknown token.

    Args:
        ids: Ids, in `[0, vocabulary)`.

    Raises:
        ValueError: If `ids` is empty or holds something else; or if an id is not in the vocabulary,
            when the search is called.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, SuppressTokens
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 9, 0, 0, 1]]), state)
    >>> search = GreedySearch(constraints=[SuppressTokens([1])])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[3], max_length=3).tokens).tolist()
    [[[4, 4, 4]]]
    """

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        ids = tuple(self.ids)
        are_ids = all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
        if not ids or not are_ids:
            raise ValueError(f"`ids` must be integers >= 0, at least one. Received: ids={ids!r}")
        object.__setattr__(self, "ids", ids)

    def _ruled_out(self, generated, vocabulary):
        if max(self.ids) >= vocabulary:
            raise ValueError(
                f"SuppressTokens needs ids below the vocabulary size, {vocabulary}. "
                f"Received: ids={self.ids!r}"
            )
        return np.isin(np.arange(vocabulary), self.ids)  # [vocabulary]
