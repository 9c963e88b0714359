"""Shapes in steps of decoding, of which every operation counts."""

from keras import ops

_MOST_POSITIONS = 8


def reshape(tensor, sizes):
    """`ops.reshape` that leaves a single unknown size to be inferred: no arithmetic of shapes.

    Args:
        tensor: A tensor.
        sizes: The new shape: ints, and what `ops.shape` gives for sizes that are not known.
    """
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes) - 1 and all(size > 0 for size in known):
        sizes = [size if isinstance(size, int) else -1 for size in sizes]
    return ops.reshape(tensor, sizes)


def is_decoding_step(inputs):
    """Whether `inputs`, `[batch, length, width]`, look like a step of decoding: few positions.

    What is chosen by it, the order of operations, changes speed alone.
    """
    shape = inputs.shape
    return len(shape) == 3 and isinstance(shape[1], int) and shape[1] <= _MOST_POSITIONS
