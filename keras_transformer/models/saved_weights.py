"""The weights of a model in the variables of a SavedModel."""

import itertools
import math
import os
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.errors import UserError, one_line
from keras_transformer.layers.effective_weights import all_maps, is_plain
from keras_transformer.models.processor import has_amx
from keras_transformer.models.weight_files import check_finite, check_size, unloadable

# Minimum number of elements of a kernel that is stored transposed for a processor without AMX.
_LARGE = 2**18
# Name of a variable in a SavedModel.
_NAME = "model_variables/{}/.ATTRIBUTES/VARIABLE_VALUE"
_KERNEL = re.compile(r".*/(query|key|value|output|inner|outer)/kernel")


def stored_weights(
    model: Any, for_amx: bool | None = None
) -> tuple[list[keras.Variable], list[list[keras.Variable]]]:
    """Returns the weights that a SavedModel stores as they are, and groups of kernels.

    The transposes of the kernels of a group are stored one after the other in one matrix, in
    bfloat16 only, where they make products faster. `for_amx` says whether the SavedModel is for a
    processor with AMX; None stands for this processor.
    """
    if for_amx is None:
        for_amx = has_amx()
    # Without AMX, small kernels are faster in Keras' own order; large ones are read in parts.
    smallest = 1 if for_amx else _LARGE
    # A quantized map, and one with LoRA, computes its kernel itself.
    maps = [part for part in all_maps(model) if is_plain(part)]
    kernels = {id(part.kernel) for part in maps if isinstance(part, keras.layers.Dense)}
    plain: list[Any] = []
    groups: list[Any] = []
    for weight in model.weights:
        match = _KERNEL.fullmatch(weight.path)
        is_half = keras.backend.standardize_dtype(weight.dtype) == "bfloat16"
        is_large = id(weight) in kernels and math.prod(weight.shape) >= smallest
        if not (match and is_half and is_large):
            plain.append(weight)
        # Queries, keys and values of self-attention are one product.
        elif match[1] in ("key", "value") and groups and groups[-1][0].shape[0] == weight.shape[0]:
            groups[-1].append(weight)
        else:
            groups.append([weight])
    return plain, groups


def load_saved_model_weights(model: Any, path: str | os.PathLike) -> None:
    """Loads the variables of a SavedModel that `export_saved_model` wrote, with TensorFlow."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(path))
        plain, groups = _stored_like(model, reader.get_variable_to_shape_map())
        for number, weight in enumerate(plain):
            weight.assign(reader.get_tensor(_NAME.format(number)))
        for number, kernels in enumerate(groups, start=len(plain)):
            matrix = np.asarray(reader.get_tensor(_NAME.format(number))).T
            ends = list(itertools.accumulate(kernel.shape[1] for kernel in kernels))
            for kernel, values in zip(kernels, np.split(matrix, ends[:-1], axis=1), strict=True):
                kernel.assign(values)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise unloadable(path, error) from error
    check_finite(model, path)


def _stored_like(model, shapes):
    """Returns the `stored_weights` that have the shapes: another processor may have exported."""
    for for_amx in (True, False):
        plain, groups = stored_weights(model, for_amx)
        expected = [list(weight.shape) for weight in plain]
        expected += [[sum(k.shape[1] for k in group), group[0].shape[0]] for group in groups]
        if expected == [shapes.get(_NAME.format(number)) for number in range(len(expected))]:
            return plain, groups
    raise ValueError("the variables have other shapes")


def count_saved_model_parameters(path: str | os.PathLike) -> int:
    """Returns the number of weights in the variables of a SavedModel."""
    import tensorflow as tf

    path = Path(path)
    try:
        reader = tf.train.load_checkpoint(str(path))
        dtypes = reader.get_variable_to_dtype_map()
        sizes = {
            name: math.prod(shape)
            for name, shape in reader.get_variable_to_shape_map().items()
            if re.fullmatch(_NAME.format(r"\d+"), name)
        }
        num_bytes = sum(size * dtypes[name].size for name, size in sizes.items())
        check_size(num_bytes, path.parent.glob(f"{path.name}.data-*"))
    except (tf.errors.OpError, ValueError) as error:
        raise UserError(f"{str(path)!r} is missing or damaged: {one_line(error)}") from error
    return sum(sizes.values())
