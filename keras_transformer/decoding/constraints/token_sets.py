"""Sets of tokens, a row each, as masks over the vocabulary."""

from keras import ops


def token_sets(tokens, is_in, vocabulary):
    """Marks the tokens that are in each row's set.

    Args:
        tokens: int32 `[rows, length]`.
        is_in: bool `[rows, length]`, which of them count.
        vocabulary: int, its size.

    Returns:
        Bool `[rows, vocabulary]`.

    Example:

    >>> mask = token_sets(ops.array([[2, 0, 2]]), ops.array([[True, False, True]]), 4)
    >>> ops.convert_to_numpy(mask).tolist()
    [[False, False, True, False]]
    """
    rows, length = ops.shape(tokens)
    # What does not count goes to a column of its own, which is cut off.
    columns = ops.where(is_in, tokens, vocabulary)  # [rows, length]
    first_places = (vocabulary + 1) * ops.arange(rows, dtype="int32")
    places = ops.reshape(columns + ops.expand_dims(first_places, -1), (-1, 1))  # [rows * length, 1]
    marks = ops.scatter_update(
        ops.zeros((rows * (vocabulary + 1),), dtype="int32"),
        places,
        ops.ones((rows * length,), dtype="int32"),
    )
    return ops.reshape(marks, (rows, vocabulary + 1))[:, :vocabulary] > 0
