"""Weights of a model in files: `.weights.h5`, and their averages."""

import contextlib
import errno
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import atomic_write, name_beside, remove
from keras_transformer.layers.composite_layer import current_names
from keras_transformer.layers.effective_weights import all_maps

WEIGHTS_SUFFIX = ".weights.h5"
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


@contextlib.contextmanager
def _lora_in_full(model):
    """Lets Keras save the sum of matrix and LoRA in the dtype of the matrix, not of products."""
    maps = [m for m in all_maps(model) if m.lora_enabled and m.quantization_mode is None]
    policies = [part.dtype_policy for part in maps]
    try:
        for part in maps:
            part.dtype_policy = part.variable_dtype
        yield
    finally:
        for part, policy in zip(maps, policies, strict=True):
            part.dtype_policy = policy


def save_weights_only(model: keras.Model, path: str | os.PathLike) -> None:
    """Writes the weights of a model, compiled or not, without its optimizer.

    Args:
        model: A `keras.Model`.
        path: A `.weights.h5` file.

    Raises:
        OSError: If there is no room for the file; nothing is written.

    Example:

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> keras_transformer.training.save_weights_only(model, "model.weights.h5")
    """
    num_bytes = sum(
        _HDF5_BYTES + math.prod(variable.shape) * (8 if "64" in variable.dtype else 4)
        for variable in model.variables
    )
    with atomic_write(path) as temporary, without_optimizer(model), _lora_in_full(model):
        check_room(Path(path), num_bytes)  # The HDF5 library crashes when the disk is full.
        model.save_weights(temporary)


def check_room(path: Path, num_bytes: int) -> None:
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

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.save_weights("model.weights.h5")
    >>> keras_transformer.training.load_weights_only(model, "model.weights.h5")
    """
    try:
        with without_optimizer(model):
            model.load_weights(path)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise unloadable(path, error) from error
    check_finite(model, path)


def unloadable(path: str | os.PathLike, error: Exception) -> UserError:
    """Returns the error for a file whose weights cannot be loaded."""
    reason = f"damaged, or of another model ({one_line(error)})"
    return UserError(f"Weights cannot be loaded from {str(path)!r}: {reason}.")


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

    A `UserError` is raised if the file is damaged, also when a dataset is read in the `with` block,
    or if it declares more than it holds, or values of other files.
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


def average_checkpoints(paths: Sequence[str | os.PathLike], output: str | os.PathLike) -> Path:
    """Writes the mean of several `.weights.h5` files of one model.

    Weights are averaged in float64 and stored in their own dtype. Other arrays, such as the states
    of random seeds, are those of the last file.

    Args:
        paths: Files written by `model.save_weights` (without the optimizer), oldest first.
        output: The `.weights.h5` file to write.

    Returns:
        `output` as `pathlib.Path`.

    Raises:
        UserError: If there are no paths, `output` has another suffix, or a file is missing,
            damaged or of another model, or holds values that are not finite.

    Example:

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> for number in (1, 3):
    ...     _ = model.layers[0].bias.assign([number])
    ...     model.save_weights(f"{number}.weights.h5")
    >>> paths = ["1.weights.h5", "3.weights.h5"]
    >>> mean = keras_transformer.training.average_checkpoints(paths, "mean.weights.h5")
    >>> model.load_weights(mean)
    >>> float(model.layers[0].bias.value[0])
    2.0

    Reference: Vaswani et al. (2017), section 6.1: the last 5 checkpoints (base) or 20 (big).
    """
    import h5py

    paths, output = list(map(Path, paths)), Path(output)
    if not paths:
        raise UserError("There are no weight files to average. Give at least one.")
    if not output.name.endswith(WEIGHTS_SUFFIX):
        raise UserError(f"The output must end in {WEIGHTS_SUFFIX!r}. Received: {str(output)!r}")
    sums = {name: value.astype("float64") for name, value in read_weights(paths[0]).items()}
    for path in paths[1:]:
        weights = read_weights(path)
        for name in sorted({*sums, *weights}):
            first, other = (getattr(file.get(name), "shape", None) for file in (sums, weights))
            if first != other:
                raise UserError(
                    f"Weight files are of different models: {name!r} has shape {first} in "
                    f"{str(paths[0])!r} and {other} in {str(path)!r}"
                )
            sums[name] += weights[name]
    # The other arrays are those of the last file. The mean is made in memory and as a new file: the
    # HDF5 library crashes when the disk is full, and when a damaged file is changed.
    content = io.BytesIO()
    with stored_arrays(paths[-1]) as arrays, h5py.File(content, "w") as mean:
        for stored_name, name in current_names(arrays).items():
            array, is_half = arrays[stored_name], _is_bfloat16(arrays[stored_name])
            values = array[()]
            if name in sums:
                dtype = ml_dtypes.bfloat16 if is_half else array.dtype
                values = (sums[name] / len(paths)).astype(dtype).view(array.dtype)
            copy = mean.create_dataset(stored_name, data=values)
            if is_half:
                copy.attrs["dtype"] = "bfloat16"
    with atomic_write(output) as temporary:
        temporary.write_bytes(content.getvalue())
    return output


def read_weights(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the floating-point arrays of a `.weights.h5` file by their names; all are finite."""
    weights: dict[str, np.ndarray] = {}
    integers = []
    with stored_arrays(path) as arrays:
        for stored_name, name in current_names(arrays).items():
            array = arrays[stored_name]
            if _is_bfloat16(array):
                weights[name] = array[...].view(ml_dtypes.bfloat16).astype("float32")
            elif np.issubdtype(array.dtype, np.floating):
                weights[name] = array[...]
            elif array.dtype == np.int8:
                integers.append(name)
    if integers:
        rule = f"The weights of a quantized model have no mean: {str(path)!r}"
        raise UserError(f"{rule} has {integers[0]!r} in int8")
    if not weights:
        raise UserError(f"Weight file holds no weights: {str(path)!r}")
    for name, value in weights.items():
        if not np.isfinite(value).all():
            raise UserError(f"Weight file has values that are not finite in {name}: {str(path)!r}")
    return weights


def _is_bfloat16(array):
    # HDF5 has no such numbers: Keras stores their bytes, with this attribute.
    return array.attrs.get("dtype") == "bfloat16"
