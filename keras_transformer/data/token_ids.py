"""What every tokenizer does with ids before it makes text of them."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID, UNK_ID


def visible_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Returns the ids that are text: up to the first EOS, without padding and BOS.

    Args:
        ids: int `[length]`: a list, a NumPy array or a tensor on the CPU.
        vocab_size: ids outside the vocabulary become the id of unknown pieces. A model whose
            embedding is larger than the vocabulary (a rounded size) can emit such ids.

    Returns:
        `list[int]`.

    Raises:
        ValueError: if `ids` has not one dimension.
    """
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(
            f"ids must have one dimension [length]. Received: ids of shape {array.shape}"
        )
    visible = []
    for token in array.tolist():
        if token == EOS_ID:
            break
        if token not in (PAD_ID, BOS_ID):
            visible.append(token if 0 <= token < vocab_size else UNK_ID)
    return visible
