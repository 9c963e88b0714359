"""Effective matrices of layers: dequantized, with LoRA merged; and copies of layers with them.

Keras' `Dense.kernel` of a quantized map holds integers without their scales. Whatever leaves a
model (a loss, an export, a bridge to another library) gets its matrices from here.
"""

from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.composite_layer import parts_of
from keras_transformer.layers.tensors import at_least_float32

_MAPS = keras.layers.Dense, keras.layers.ReversibleEmbedding


def maps_of(layer: keras.layers.Layer) -> Iterator[tuple[str, Any]]:
    """Yields path and layer of each linear map and each embedding inside a layer or a model."""
    for path, part, _ in parts_of(layer):
        if isinstance(part, _MAPS):
            yield path, part


def all_parts(model: Any) -> list:
    """Returns the layers inside a model or an `Ensemble`, and inside the models inside it."""
    parts = [model, *(part for _, part, _ in parts_of(model, private=True))]
    inner = [layer for part in parts if isinstance(part, keras.Model) for layer in part.layers]
    inner += getattr(model, "models", [])  # of an `Ensemble`
    parts += [part for layer in inner for part in all_parts(layer)]
    return list({id(part): part for part in parts}.values())


def all_maps(model: Any) -> list:
    """Returns the linear maps and the embeddings of a model, and of the models inside it."""
    return [part for part in all_parts(model) if isinstance(part, _MAPS)]


def is_plain(part: Any) -> bool:
    """Returns whether a linear map or an embedding is neither quantized nor has LoRA."""
    return part.quantization_mode is None and not part.lora_enabled


def effective_matrix(part: Any) -> Any:
    """Returns the matrix that a linear map or an embedding computes with.

    A plain layer returns its variable. The outputs of a quantized layer differ from the product
    with this matrix by the rounding of its inputs, and in float8 of the matrix too.

    Args:
        part: A built `keras.layers.Dense` or `keras.layers.ReversibleEmbedding`.

    Returns:
        `[input_dim, units]` or `[vocab_size, d_model]`, floating.

    Raises:
        ValueError: If the layer is quantized in another mode than int8, int4 or float8.
    """
    # The variable: its values, or the integers of a quantized layer.
    matrix, mode = _weight(part, _matrix_name(part)), part.quantization_mode
    if mode in ("int8", "int4"):
        matrix = _dequantized(part, matrix)
    elif mode not in (None, "float8"):
        rule = "Effective weights exist for layers that are quantized in int8, int4 or float8"
        raise ValueError(f"{rule}. Received: {part.path!r}, quantized in {mode!r}")
    if not part.lora_enabled:
        return matrix
    name = f"lora_{_matrix_name(part)}"
    change = ops.matmul(getattr(part, f"{name}_a"), getattr(part, f"{name}_b"))
    return ops.add(matrix, part.lora_alpha / part.lora_rank * change)


def plain_copy(layer: Any) -> Any:
    """Returns a copy without quantization and LoRA, of effective weights; itself if it is plain.

    Args:
        layer: A built `CompositeLayer` or `Transformer`.
    """
    if all(is_plain(part) for _, part in maps_of(layer)):
        return layer
    copy = type(layer).from_config(_without_quantization(layer.get_config()))
    if not copy.built:
        copy.build_from_config(layer.get_build_config())
    copy_weights(layer, copy)
    return copy


def copy_weights(source: Any, copy: Any) -> None:
    """Sets the weights of a copy of a layer, whose maps may be quantized as those of `source`.

    A map that is not quantized in the copy gets the effective matrix. One that is quantized keeps
    its integers, and gets LoRA where `source` has it.
    """
    parts, values = dict(maps_of(source)), _weights_by_part(source)
    for path, part in maps_of(copy):
        if part.quantization_mode in (None, "float8"):
            values[path, _matrix_name(part)] = effective_matrix(parts[path])
        elif parts[path].lora_enabled:
            part.enable_lora(parts[path].lora_rank, parts[path].lora_alpha)
    for key, weight in _weights_by_part(copy).items():
        weight.assign(values[key])


def _weights_by_part(layer):
    """Returns the weights by the path of the innermost part that has them, and their name."""
    parts = ("", layer), *((path, part) for path, part, _ in parts_of(layer))
    owners = {id(weight): (path, weight) for path, part in parts for weight in part.weights}
    return {(path, weight.name): weight for path, weight in owners.values()}


def _dequantized(part, integers):
    is_dense, name = isinstance(part, keras.layers.Dense), _matrix_name(part)
    if part.quantization_mode == "int4":  # Two numbers share a byte.
        width = part.units if is_dense else part.output_dim
        integers = keras.quantizers.unpack_int4(integers, width, axis=-1)
    scale = _weight(part, f"{name}_scale")
    dtype = at_least_float32(scale.dtype)
    matrix, scale = ops.cast(integers, dtype), ops.cast(scale, dtype)
    if not any(weight.name == f"{name}_zero" for weight in part.weights):
        return matrix / (scale if is_dense else ops.expand_dims(scale, 1))
    # Groups of inputs have a scale and a zero for each output.
    zero, groups = ops.cast(_weight(part, f"{name}_zero"), dtype), _weight(part, "g_idx")
    groups, axis = ops.cast(groups, "int32"), 0 if is_dense else 1
    return (matrix - ops.take(zero, groups, axis)) * ops.take(scale, groups, axis)


def _matrix_name(part):
    return "kernel" if isinstance(part, keras.layers.Dense) else "embeddings"


def _weight(part, name):
    return next(weight for weight in part.weights if weight.name == name)


def _without_quantization(config):
    """Returns a config, and those inside it, without the parts to quantize."""
    if isinstance(config, dict):
        return {
            key: {} if key == "quantized_parts" else _without_quantization(value)
            for key, value in config.items()
        }
    if isinstance(config, list | tuple):
        return type(config)(map(_without_quantization, config))
    return config
