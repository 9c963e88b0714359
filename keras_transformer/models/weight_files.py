"""Weight files of a model, without the optimiser."""

import contextlib
import errno
import math
import os
import pathlib
from collections.abc import Iterator

import keras
from keras import ops

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import name_beside, remove
from keras_transformer.layers.kernels.stored_kernels import stored_variables

# Upper bound of the bytes for each array besides its values: groups, names, alignment.
_HDF5_BYTES = 4096


@contextlib.contextmanager
def without_optimizer(model: keras.Model) -> Iterator[None]:
    """Removes the optimiser in a `with` block: Keras would save it, or warn if a file lacks it."""
    optimizer = getattr(model, "optimizer", None)
    model.optimizer = None
    try:
        yield
    finally:
        model.optimizer = optimizer


def save_weights_only(model: keras.Model, path: str | os.PathLike) -> None:
    """Writes the weights of a model, compiled or not, without its optimiser.

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
    """Loads a weight file, and leaves the optimiser of a compiled model as it is.

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
    for weight in model.weights:
        if not ops.all(ops.isfinite(weight)):
            raise UserError(
                f"Weights cannot be loaded from {str(path)!r}: {weight.path!r} has values that are "
                f"not finite {weight.dtype} numbers. Use an earlier checkpoint."
            )


def load_saved_model_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Loads the variables of a SavedModel that `export_saved_model` wrote, with TensorFlow."""
    import tensorflow as tf

    variables, transposes = stored_variables(model)
    reader = tf.train.load_checkpoint(str(path))
    plain = [weight for weight in model.weights if id(weight) not in transposes]
    for number, variable in enumerate([*plain, *variables[len(plain) :]]):
        name = f"model_variables/{number}/.ATTRIBUTES/VARIABLE_VALUE"
        variable.assign(reader.get_tensor(name))
    for weight in model.weights:
        if place := transposes.get(id(weight)):
            weight.assign(ops.transpose(place.matrix[place.start : place.end]))


def count_stored_parameters(path: str | os.PathLike) -> int:
    """Returns the number of weights in a file, not counting random seeds and an optimiser."""
    import h5py

    sizes = [0]

    def visit(name, item):
        is_weight = "seed_generator" not in name and not name.startswith("optimizer/")
        if isinstance(item, h5py.Dataset) and is_weight:
            sizes.append(item.size)
            # HDF5 stores a dataset without values, of any size, in a few bytes.
            if item.nbytes > os.path.getsize(path):
                raise ValueError(f"{name} is larger than the file")

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{str(path)!r} is cut short or not a weights file: {one_line(error)}"
        ) from error
    return sum(sizes)
