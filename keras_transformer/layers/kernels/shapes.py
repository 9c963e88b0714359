"""Shape helpers that keep the graph of a decoding step small."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.layers.dtypes import Tensor

_MAX_POSITIONS = 8


def reshape(tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """As `ops.reshape`, but infers a single unknown size, which saves arithmetic of shapes.

    Each size is an int, or the tensor that `ops.shape` gives for an unknown size.
    """
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes) - 1 and all(size > 0 for size in known):
        sizes = [size if isinstance(size, int) else -1 for size in sizes]
    return ops.reshape(tensor, sizes)


def is_decoding_step(inputs: Tensor) -> bool:
    """Returns whether `[batch, length, width]` has few positions, as a decoding step does.

    It decides on the order of operations, which changes only the speed.
    """
    shape = inputs.shape
    return len(shape) == 3 and isinstance(shape[1], int) and shape[1] <= _MAX_POSITIONS
