"""Weight files of a model, without the optimizer."""

import contextlib
import errno
import math
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import name_beside, remove

# Upper bound of the bytes for each array besides its values: groups, names, alignment.
_HDF5_BYTES = 4096


@contextlib.contextmanager
def without_optimizer(model: keras.Model) -> Iterator[None]:
    """Removes the optimizer in a `with` block: Keras would save it, or warn if a file lacks it."""
    optimizer = getattr(model, "optimizer", None)
    model.optimizer = None
    try:
        yield
    finally:
        model.optimizer = optimizer


def save_weights_only(model: keras.Model, path: str | os.PathLike) -> None:
    """Writes the weights of a model, compiled or not, without its optimizer.

    Args:
        model: A `keras.Model`.
        path: A `.weights.h5` file.

    Raises:
        OSError: If there is no room for the file; nothing is written.

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
    """Raises an `OSError` that names `path` if no file of `num_bytes` can be written beside it."""
    if not hasattr(os, "posix_fallocate"):
        return
    temporary = name_beside(path)
    try:
        with open(temporary, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # The file system cannot tell.
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        remove(temporary)


def load_weights_only(model: keras.Model, path: str | os.PathLike) -> None:
    """Loads a weight file, and leaves the optimizer of a compiled model as it is.

    Args:
        model: A `keras.Model`.
        path: A `.weights.h5` file.

    Raises:
        UserError: If the file is missing, damaged or of another model, or a weight is not finite.

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
    check_finite(model, path)


def check_finite(model: keras.Model, path: str | os.PathLike) -> None:
    """Raises a `UserError` that names the file if a weight of the model is not finite."""
    for weight in model.weights:
        if not ops.all(ops.isfinite(weight)):
            raise UserError(
                f"Weights cannot be loaded from {str(path)!r}: {weight.path!r} has values that are "
                f"not finite {weight.dtype} numbers. Use an earlier checkpoint."
            )


@contextlib.contextmanager
def stored_arrays(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yields the HDF5 datasets of a weight file by name.

    A `UserError` is raised if the file is missing or damaged, also when a dataset is read in the
    `with` block, or if it declares more than it holds or values of other files.
    """
    import h5py

    arrays = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            arrays[name] = item

    try:
        if not os.path.isfile(path):
            raise FileNotFoundError("there is no such regular file")
        with h5py.File(path, "r") as file:
            file.visititems(visit)
            if not all(isinstance(name, str) for name in arrays):
                raise ValueError("a name in it is not UTF-8")
            if any(item.external or item.is_virtual for item in arrays.values()):
                raise ValueError("its values are in other files")
            check_size(sum(item.nbytes for item in arrays.values()), [path])
            yield arrays
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise UserError(
            f"{str(path)!r} is missing or damaged, or not a weights file: {one_line(error)}"
        ) from error


def count_stored_parameters(path: str | os.PathLike) -> int:
    """Returns the number of weights in a file, not counting random seeds and an optimizer."""
    with stored_arrays(path) as arrays:
        return sum(
            item.size
            for name, item in arrays.items()
            if "seed_generator" not in name and not name.startswith("optimizer/")
        )


def check_size(num_bytes: int, files: Iterable[str | os.PathLike]) -> None:
    """Raises a `ValueError` if arrays of this size cannot be in the files."""
    # Both formats declare values that are not stored, of any size, in a few bytes.
    if num_bytes > sum(map(os.path.getsize, files)):
        raise ValueError(f"its arrays, of {num_bytes:,} bytes, are larger than the file")
