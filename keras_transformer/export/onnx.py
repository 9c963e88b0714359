"""Export to ONNX, for onnxruntime: the encoder and one decoder step."""

import os
import pathlib
from typing import Any

import numpy as np

from keras_transformer.errors import UserError
from keras_transformer.export.formats import export_folder
from keras_transformer.export.steps import concrete_functions, convertible
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import ONNX_WEIGHTS_FILE

# The newest opset that tf2onnx is tested with.
_OPSET = 18
# Smaller constants, such as shapes, stay in the ONNX files.
_SMALLEST_SHARED = 1024  # bytes
# A runtime can map weights that begin at such an address into memory.
_ALIGNMENT = 4096  # bytes
_DIMENSIONS = {
    "source": ("batch", "source_length"),
    "source_mask": ("batch", "source_length"),
    "tokens": ("rows",),
    "logits": ("rows", "vocabulary"),
    "cross": ("batch", "heads", "source_length", "dim"),
    "self": ("rows", "heads", "target_length", "dim"),
    "new": ("rows", "heads", "new_target_length", "dim"),
}


def export_onnx(
    translator: Translator, directory: str | os.PathLike, quantization: str | None = None
) -> pathlib.Path:
    """Writes `encode.onnx`, `decode.onnx`, `weights.bin` and the tokenizer; returns `directory`.

    The models are the encoder and one step of the decoder, with dynamic batch and lengths.
    docs/runtimes.md describes their inputs and outputs, and shows a greedy search that uses them.
    The translator's own search is not exported; a warning names its constraints.

    Args:
        translator: A `Translator`.
        directory: A new or empty folder, or an earlier export, which is replaced.
        quantization: None for float32, or `"int8"` for weights in int8, with a scale for each
            output of a linear map and each row of an embedding. Products with weights are computed
            in int8, all else in float32.

    Raises:
        UserError: If onnx or tf2onnx is not installed, or onnxruntime for int8, tf2onnx cannot
            convert the model, Keras does not run on TensorFlow, the model has a sliding window or
            is an `Ensemble`, or the directory holds other files.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_onnx(translator, "exports/en_de")  # doctest: +SKIP
    """
    with export_folder(translator, directory, "onnx", quantization=quantization) as aside:
        # It is a variable, because `functions` do not keep the model's weights alive.
        model = convertible(translator.model, int8_embeddings=quantization == "int8")
        functions = concrete_functions(model)
        models = {name: _convert(function) for name, function in functions.items()}
        if quantization == "int8":
            models = {name: _quantize(model, aside) for name, model in models.items()}
        _write(models, aside)
    return pathlib.Path(directory)


def _convert(function):
    """Returns the ONNX model of a concrete function."""
    import onnx
    import tensorflow as tf
    from tf2onnx import tf_loader, tfonnx

    inputs = [tensor.name for tensor in function.inputs if tensor.dtype != tf.resource]
    outputs = {tensor.name: name for name, tensor in function.structured_outputs.items()}
    names = {name: name.removesuffix(":0") for name in inputs} | outputs
    frozen = tf_loader.from_function(function, inputs, list(outputs))
    ends = {"input_names": inputs, "output_names": list(outputs), "tensors_to_rename": names}
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        options = {"opset": _OPSET, "custom_op_handlers": _HANDLERS}
        converted = tfonnx.process_tf_graph(graph, **ends, **options)
    # tf2onnx's optimizations are left out: one of them merges different reshapes, and runtimes
    # optimize the graphs that they load.
    model = converted.make_model("keras_transformer")
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise UserError(f"tf2onnx has no conversion of this model: {error}") from error
    for value in [*model.graph.input, *model.graph.output]:
        dimensions = _DIMENSIONS.get(value.name) or _DIMENSIONS[value.name.split("_")[0]]
        for dimension, name in zip(value.type.tensor_type.shape.dim, dimensions, strict=True):
            if not dimension.dim_value:
                dimension.dim_param = name
    return model


def _convert_erfc(context, node, *_):
    """Converts TensorFlow's `Erfc`, 1 - erf(x), which GELU uses and tf2onnx does not support."""
    number = context.make_const(f"{node.name}_one", np.array(1.0, "float32"))
    erf, [result], inputs = f"{node.name}_erf", node.output, list(node.input)
    types = {"shapes": [context.get_shape(result)], "dtypes": [context.get_dtype(result)]}
    context.remove_node(node.name)
    context.make_node("Erf", inputs, outputs=[erf], **types)
    context.make_node("Sub", [number.output[0], erf], outputs=[result], **types)


_HANDLERS: dict[str, tuple[Any, list]] = {"Erfc": (_convert_erfc, [])}


def _quantize(model, directory):
    """Returns an ONNX model with products in int8; `directory` is for a temporary file."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    path = directory / "quantized.onnx"
    # This prevents a warning: onnxruntime's own optimizations are not needed before.
    add_pre_process_metadata(model)
    quantize_dynamic(model, path, op_types_to_quantize=["MatMul"], per_channel=True)
    quantized = onnx.load(path)
    path.unlink()
    return quantized


def _shorten_names(graph):
    """Numbers the tensors inside a graph: TensorFlow's names, and inferred shapes, take 0.3 MB."""
    names = {value.name: value.name for value in [*graph.input, *graph.output]}
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, str(len(names)))
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [name and names.setdefault(name, str(len(names))) for name in tensors]
    graph.ClearField("value_info")


def _write(models, directory):
    """Writes ONNX models. One file has the large constants of all models, equal ones once."""
    import onnx

    offsets = {}  # by content
    with open(directory / ONNX_WEIGHTS_FILE, "wb") as file:
        for name, model in models.items():
            _shorten_names(model.graph)
            for tensor in model.graph.initializer:
                array = onnx.numpy_helper.to_array(tensor)
                if array.nbytes < _SMALLEST_SHARED:
                    continue
                if array.tobytes() not in offsets and array.T.tobytes() in offsets:
                    # TensorFlow transposed a copy of the embedding matrix for the softmax.
                    _insert_transpose(model.graph, tensor)
                    array = array.T
                content = array.tobytes()
                if content not in offsets:
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    offsets[content] = file.tell()
                    file.write(content)
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
                onnx.external_data_helper.set_external_data(
                    tensor, ONNX_WEIGHTS_FILE, offset=offsets[content], length=len(content)
                )
                tensor.ClearField("raw_data")
            (directory / f"{name}.onnx").write_bytes(model.SerializeToString())


def _insert_transpose(graph, tensor):
    """Renames a constant that is stored transposed, and adds a node that transposes it back."""
    import onnx

    name, rank = tensor.name, len(tensor.dims)
    tensor.name = f"{name}_transposed"
    node = onnx.helper.make_node("Transpose", [tensor.name], [name], perm=range(rank)[::-1])
    graph.node.insert(0, node)
