"""Weight files of a model, without the optimiser."""

import contextlib
import errno
import math
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import name_beside, remove
from keras_transformer.layers.kernels.stored_kernels import stored_variables

# Name of a variable in a SavedModel.
_SAVED_VARIABLE = "model_variables/{}/.ATTRIBUTES/VARIABLE_VALUE"
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
    _check_finite(model, path)


def load_saved_model_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Loads the variables of a SavedModel that `export_saved_model` wrote, with TensorFlow."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(path))
        variables, transposes = _stored_like(model, reader.get_variable_to_shape_map())
        plain = [weight for weight in model.weights if id(weight) not in transposes]
        for number, variable in enumerate([*plain, *variables[len(plain) :]]):
            variable.assign(reader.get_tensor(_SAVED_VARIABLE.format(number)))
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise UserError(
            f"Weights cannot be loaded from {str(path)!r}: damaged files, or of another model "
            f"({one_line(error)})."
        ) from error
    for weight in model.weights:
        if place := transposes.get(id(weight)):
            weight.assign(ops.transpose(place.matrix[place.start : place.end]))
    _check_finite(model, path)


def _stored_like(model, shapes):
    """Returns the `stored_variables` that have the shapes: another processor may have exported."""
    for for_amx in (True, False):
        variables, transposes = stored_variables(model, for_amx)
        names = map(_SAVED_VARIABLE.format, range(len(variables)))
        if [shapes.get(name) for name in names] == [list(one.shape) for one in variables]:
            return variables, transposes
    raise ValueError("the variables have other shapes")


def _check_finite(model, path):
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
            _check_size(sum(item.nbytes for item in arrays.values()), [path])
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


def count_saved_model_parameters(path: str | os.PathLike) -> int:
    """Returns the number of weights in the variables of a SavedModel."""
    import tensorflow as tf

    path = pathlib.Path(path)
    try:
        reader = tf.train.load_checkpoint(str(path))
        dtypes = reader.get_variable_to_dtype_map()
        sizes = {
            name: math.prod(shape)
            for name, shape in reader.get_variable_to_shape_map().items()
            if re.fullmatch(_SAVED_VARIABLE.format(r"\d+"), name)
        }
        num_bytes = sum(size * dtypes[name].size for name, size in sizes.items())
        _check_size(num_bytes, path.parent.glob(f"{path.name}.data-*"))
    except (tf.errors.OpError, ValueError) as error:
        raise UserError(f"{str(path)!r} is missing or damaged: {one_line(error)}") from error
    return sum(sizes.values())


def _check_size(num_bytes, files):
    # Both formats declare values that are not stored, of any size, in a few bytes.
    if num_bytes > sum(map(os.path.getsize, files)):
        raise ValueError(f"its arrays, of {num_bytes:,} bytes, are larger than the file")
