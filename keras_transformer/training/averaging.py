"""Averages of weight files."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write
from keras_transformer.layers.version_1 import current_names
from keras_transformer.models.weight_files import stored_arrays

WEIGHTS_SUFFIX = ".weights.h5"


def average_checkpoints(paths: Sequence[str | os.PathLike], output: str | os.PathLike) -> Path:
    """Writes the mean of several `.weights.h5` files of one model.

    Floating-point weights are averaged in float64 and stored in their own dtype. Other arrays (the
    states of random seeds, which are integers) are taken from the last file.

    Args:
        paths: files written by `model.save_weights` (without the optimizer), oldest first.
        output: file to write, a `.weights.h5` file for `model.load_weights`.

    Returns:
        `output` as `pathlib.Path`.

    Raises:
        UserError: if there are no paths, `output` has another suffix, or a file is missing or
            damaged, belongs to another model, or holds values that are not finite.

    Example:

    >>> import tempfile
    >>> from keras_transformer.training import average_checkpoints
    >>> folder = tempfile.mkdtemp()
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> paths = [f"{folder}/{number}.weights.h5" for number in (1, 3)]
    >>> for path, value in zip(paths, (1.0, 3.0)):
    ...     _ = model.layers[0].bias.assign([value])
    ...     model.save_weights(path)
    >>> model.load_weights(average_checkpoints(paths, f"{folder}/mean.weights.h5"))
    >>> float(model.layers[0].bias.value[0])
    2.0

    Reference: Vaswani et al. (2017), section 6.1: the last 5 checkpoints (base) or 20 (big).
    """
    import h5py

    paths = [Path(path) for path in paths]
    output = Path(output)
    if not paths:
        raise UserError("There are no weight files to average. Give at least one.")
    if not output.name.endswith(WEIGHTS_SUFFIX):
        raise UserError(f"The output must end in {WEIGHTS_SUFFIX!r}. Received: {str(output)!r}")
    weights = read_weights(paths[0])
    sums = {name: value.astype("float64") for name, value in weights.items()}
    for path in paths[1:]:
        weights = read_weights(path)
        for name in sorted({*sums, *weights}):
            there, here = (getattr(file.get(name), "shape", None) for file in (sums, weights))
            if here != there:
                raise UserError(
                    f"Weight files are of different models: {name!r} has shape {there} in "
                    f"{str(paths[0])!r} and {here} in {str(path)!r}"
                )
            sums[name] += weights[name]
    # The other arrays are those of the last file. The mean is made in memory and as a new file: the
    # HDF5 library crashes when the disk is full, and when a damaged file is changed.
    content = io.BytesIO()
    with stored_arrays(paths[-1]) as arrays, h5py.File(content, "w") as mean:
        names = current_names(arrays)
        for stored_name, array in arrays.items():
            values = array[()]
            is_half = _is_bfloat16(array)
            if names[stored_name] in sums:
                values = sums[names[stored_name]] / len(paths)
                values = values.astype(ml_dtypes.bfloat16 if is_half else array.dtype)
            copy = mean.create_dataset(stored_name, data=values.view(array.dtype))
            if is_half:
                copy.attrs["dtype"] = "bfloat16"
    with atomic_write(output) as temporary:
        temporary.write_bytes(content.getvalue())
    return output


def read_weights(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the floating-point arrays of a `.weights.h5` file by their names; all are finite."""
    weights: dict[str, np.ndarray] = {}
    with stored_arrays(path) as arrays:
        names = current_names(arrays)
        for name, array in arrays.items():
            if _is_bfloat16(array):
                weights[names[name]] = array[...].view(ml_dtypes.bfloat16).astype("float32")
            elif np.issubdtype(array.dtype, np.floating):
                weights[names[name]] = array[...]
    if not weights:
        raise UserError(f"Weight file holds no weights: {str(path)!r}")
    for name, value in weights.items():
        if not np.isfinite(value).all():
            raise UserError(f"Weight file has values that are not finite in {name}: {str(path)!r}")
    return weights


def _is_bfloat16(array) -> bool:
    # HDF5 has no such numbers: Keras stores their bytes, with this attribute.
    return array.attrs.get("dtype") == "bfloat16"
