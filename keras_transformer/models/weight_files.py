"""Weights of a model to and from a file, without those of its optimiser."""

import contextlib
import errno
import math
import os
import pathlib

from keras import ops

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import name_beside, remove

# At most what an HDF5 file needs for each array besides its values: groups, names, alignment.
_HDF5_BYTES = 4096


@contextlib.contextmanager
def without_optimizer(model):
    """Hides the optimiser of a compiled model for the length of a block.

    Keras writes the optimiser's variables into `.weights.h5` files, which makes them three times
    as large, and warns when a file that is loaded has none.

    Args:
        model: `keras.Model`.

    Example:

    >>> import keras
    >>> from keras_transformer.models.weight_files import without_optimizer
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with without_optimizer(model):
    ...     model.optimizer is None
    True
    """
    optimizer = getattr(model, "optimizer", None)
    model.optimizer = None
    try:
        yield
    finally:
        model.optimizer = optimizer


def save_weights_only(model, path: str | os.PathLike) -> None:
    """Writes the weights of a model, compiled or not, without its optimiser.

    Args:
        model: `keras.Model`.
        path: a `.weights.h5` file.

    Raises:
        OSError: before anything is written, if there is no room for the file.

    Example:

    >>> import tempfile
    >>> from keras_transformer.training import load_weights_only, save_weights_only
    >>> path = tempfile.mkdtemp() + "/model.weights.h5"
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> save_weights_only(model, path)
    >>> load_weights_only(model, path)
    """
    # The HDF5 library crashes the process when the disk is full.
    num_bytes = sum(
        _HDF5_BYTES + math.prod(variable.shape) * (8 if "64" in variable.dtype else 4)
        for variable in model.variables
    )
    check_room(pathlib.Path(path), num_bytes)
    with without_optimizer(model):
        model.save_weights(path)


def check_room(path: pathlib.Path, num_bytes: int) -> None:
    """Raises if a file of some size cannot be written; writes nothing.

    Args:
        path: the file. What it holds now stays.
        num_bytes: int, size of the file.

    Raises:
        OSError: one of `NO_ROOM`, with the path, or another reason why nothing can be written.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    temporary = name_beside(path)
    try:
        with open(temporary, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot tell
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        remove(temporary)


def load_weights_only(model, path: str | os.PathLike) -> None:
    """Loads a weight file, and leaves the optimiser of a compiled model as it is.

    Args:
        model: `keras.Model`.
        path: a `.weights.h5` file.

    Raises:
        UserError: if the file is missing, damaged or of another model, or a weight is not finite.

    Example:

    >>> import tempfile
    >>> from keras_transformer.training import load_weights_only, save_weights_only
    >>> path = tempfile.mkdtemp() + "/model.weights.h5"
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> save_weights_only(model, path)
    >>> load_weights_only(model, path)
    """
    try:
        with without_optimizer(model):
            model.load_weights(path)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(
            f"Weights cannot be loaded from {str(path)!r}: damaged file, or another model "
            f"({one_line(error)})."
        ) from error
    for weight in model.weights:
        if not ops.all(ops.isfinite(weight)):
            raise UserError(
                f"Weights cannot be loaded from {str(path)!r}: {weight.path!r} has values that are "
                f"not finite {weight.dtype} numbers. Use an earlier checkpoint."
            )


def count_stored_parameters(path: str | os.PathLike) -> int:
    """Counts the weights in a file, without the states of random seeds and an optimiser.

    Args:
        path: a `.weights.h5` file.

    Returns:
        int.

    Raises:
        UserError: if the file is damaged.
    """
    import h5py

    sizes = [0]

    def visit(name, item):
        is_weight = "seed_generator" not in name and not name.startswith("optimizer/")
        if isinstance(item, h5py.Dataset) and is_weight:
            sizes.append(item.size)
            # HDF5 stores a dataset without values, of whatever size, in a few bytes.
            if item.nbytes > os.path.getsize(path):
                raise ValueError(f"{name} is larger than the file")

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{str(path)!r} is cut short or no weights file: {one_line(error)}"
        ) from error
    return sum(sizes)
