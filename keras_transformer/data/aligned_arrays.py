"""Arrays whose memory TensorFlow can use without a copy; `tf.constant` would make two copies."""

import numpy as np

# TensorFlow's kernels need memory that begins at a multiple of this number of bytes.
_ALIGNMENT = 64


def empty_aligned(size: int, dtype) -> np.ndarray:
    """Returns a new array at an address that TensorFlow can use; its content is undefined."""
    num_bytes = size * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype)


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns the array if TensorFlow can use its memory, otherwise a copy that it can use."""
    flags = array.flags
    if array.ctypes.data % _ALIGNMENT == 0 and flags.writeable and flags.c_contiguous:
        return array
    copy = empty_aligned(array.size, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def shared_tensor(array: np.ndarray):
    """Returns a `tf.Tensor` on the memory of an array, which must not change from then on."""
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(aligned(array).__dlpack__())
