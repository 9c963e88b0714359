"""Sets of tokens as masks over the vocabulary."""

from keras import ops

from keras_transformer.layers.dtypes import Tensor


def token_sets(tokens: Tensor, is_in: Tensor, vocabulary: int) -> Tensor:
    """Returns the set of tokens of each row as a mask, bool `[rows, vocabulary]`.

    Args:
        tokens: int32 `[rows, length]`.
        is_in: bool `[rows, length]`, which of them are in the set.
        vocabulary: Size of the vocabulary.
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
