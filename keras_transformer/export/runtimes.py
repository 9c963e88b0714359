"""Exports to ONNX, for onnxruntime, and LiteRT (formerly TensorFlow Lite), for phones.

Both have the encoder and one step of the decoder; the program that runs them searches.
"""

import os
import pathlib
import tempfile
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.export.formats import export_folder
from keras_transformer.inference.translator import Translator
from keras_transformer.layers.caches import (
    CompleteCache,
    DecoderBlockCache,
    DecoderCache,
    GrowingCache,
)
from keras_transformer.layers.effective_weights import plain_copy
from keras_transformer.layouts import LITERT_FILE, ONNX_WEIGHTS_FILE
from keras_transformer.models import Transformer
from keras_transformer.models.decoding_state import DecodingState
from keras_transformer.models.ensemble import copy_of

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
        UserError: If onnx, tf2onnx or onnxruntime is not installed, tf2onnx cannot convert the
            model, Keras does not run on TensorFlow, the model has a sliding window or is an
            `Ensemble`, or the directory holds other files.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_onnx(translator, "exports/en_de")  # doctest: +SKIP
    """
    with export_folder(translator, directory, "onnx", quantization=quantization) as aside:
        # It is a variable, because `functions` do not keep the model's weights alive.
        model = _convertible(translator.model, int8_embeddings=quantization == "int8")
        functions = _concrete_functions(model)
        models = {name: _convert(function) for name, function in functions.items()}
        if quantization == "int8":
            models = {name: _quantize(model, aside) for name, model in models.items()}
        _write(models, aside)
    return pathlib.Path(directory)


def export_litert(
    translator: Translator, directory: str | os.PathLike, quantization: str | None = None
) -> pathlib.Path:
    """Writes `model.tflite` and the tokenizer's file; returns `directory`.

    Its signatures `encode` and `decode` have the same inputs and outputs as the models of
    `export_onnx`. They share the weights and use only LiteRT's own operations.

    Args:
        translator, directory: As in `export_onnx`.
        quantization: None for float32, `"float16"` for weights in float16, or `"int8"` for weights
            in int8, with a scale for each output of a linear map and each row of an embedding.
            Products with weights in int8 are computed in int8, all else in float32.

    Raises:
        UserError: As in `export_onnx`, except that no package is needed.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_litert(translator, "exports/en_de", quantization="int8")  # doctest: +SKIP
    """
    with export_folder(translator, directory, "litert", quantization=quantization) as aside:
        import tensorflow as tf

        model = _convertible(translator.model, int8_embeddings=quantization == "int8")
        functions = _concrete_functions(model)
        module = tf.Module()
        # The module makes TensorFlow save the weights, which the conversion turns into constants.
        module.model_variables = [weight.value for weight in model.weights]
        # It is in `aside`, so that what a killed process leaves is removed with it.
        with tempfile.TemporaryDirectory(dir=aside) as path:
            tf.saved_model.save(module, path, signatures=functions)
            names = list(functions)
            converter = tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=names)
            # Most builds of the runtime lack TensorFlow's operations ("Flex").
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            if quantization is not None:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if quantization == "float16":
                converter.target_spec.supported_types = [tf.float16]
            (aside / LITERT_FILE).write_bytes(converter.convert())
    return pathlib.Path(directory)


def _convertible(model: Any, int8_embeddings: bool = False) -> Transformer:
    """Returns the model, or a copy, in float32 without loops, which the converters do not know.

    With `int8_embeddings`, the matrices of the embeddings are quantized.
    """
    if model.config.sliding_window is not None:
        rule = "ONNX and LiteRT exports have no sliding window; a SavedModel has it"
        raise UserError(f"{rule}. Received: sliding_window={model.config.sliding_window}")
    model = plain_copy(model)
    is_simple = model.config.flash_attention is None and model.dtype_policy.name == "float32"
    if is_simple and not int8_embeddings:
        return model
    copy = copy_of(model, "float32", flash_attention=None)
    if int8_embeddings:
        for embedding in {copy.source_embedding, copy.target_embedding}:
            embedding.embedding = _Int8Embedding(embedding.embeddings)
    return copy


class _Int8Embedding:
    """Replaces a `keras.layers.ReversibleEmbedding`: a matrix in int8 with a scale for each row.

    The converters quantize each column of a factor of a product so that its largest number becomes
    127. Here it is 127 already, so they store the matrix of the lookup again, and it is shared.
    """

    quantization_mode = None  # `TiedEmbedding` calls it as a plain embedding.

    def __init__(self, embeddings):
        self.embeddings = ops.convert_to_numpy(embeddings)
        largest = np.abs(self.embeddings).max(axis=1, keepdims=True)
        # LiteRT quantizes the scales too, with one step for all: a large one would erase others.
        largest = np.where(largest > 0, largest, np.max(largest) or 1.0)
        self.scales = (largest / 127).astype("float32")
        self.rows = np.rint(self.embeddings / self.scales)

    def __call__(self, inputs, reverse=False):
        if reverse:
            return ops.matmul(inputs, self.rows.T) * self.scales[:, 0]
        rows = ops.take(self.rows.astype("int8"), inputs, axis=0)
        return ops.cast(rows, "float32") * ops.take(self.scales, inputs, axis=0)


def _concrete_functions(model: Transformer) -> dict[str, Any]:
    """Returns concrete functions `encode` and `decode` of a model, for any batch and lengths.

    docs/runtimes.md describes their named tensors.
    """
    import tensorflow as tf

    def encode(source):
        outputs, source_mask = model.encode(source, training=False)
        named = {"source_mask": source_mask}
        for number, block in enumerate(model.decoder.blocks):
            keys, values = block.cross_attention.make_cache(outputs)
            named |= {f"cross_key_{number}": keys, f"cross_value_{number}": values}
        return named

    def decode(tokens, source_mask, **tensors):
        blocks = []
        for number in range(len(model.decoder.blocks)):
            keys, values = tensors[f"self_key_{number}"], tensors[f"self_value_{number}"]
            past = GrowingCache((keys,), (values,))
            cross = CompleteCache(tensors[f"cross_key_{number}"], tensors[f"cross_value_{number}"])
            blocks.append(DecoderBlockCache(past, cross))
        cache = DecoderCache(ops.shape(tensors["self_key_0"])[2], tuple(blocks))
        logits, state = model.decode_step(tokens, None, DecodingState(cache, source_mask))
        named = {"logits": logits}
        for number, block in enumerate(state.cache.blocks):
            [keys], [values] = block.self_attention
            named |= {f"new_self_key_{number}": keys, f"new_self_value_{number}": values}
        return named

    inputs = {
        "tokens": tf.TensorSpec([None], tf.int32),
        "source_mask": tf.TensorSpec([None, None], tf.bool),
    }
    for number, block in enumerate(model.decoder.blocks):
        for kind, attention in (("self", block.self_attention), ("cross", block.cross_attention)):
            for name, dim in (("key", attention.key_dim), ("value", attention.value_dim)):
                shape = [None, attention.num_heads, None, dim]
                inputs[f"{kind}_{name}_{number}"] = tf.TensorSpec(shape, tf.float32)

    def traced(function, **inputs):
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    source = tf.TensorSpec([None, None], tf.int32)
    return {"encode": traced(encode, source=source), "decode": traced(decode, **inputs)}


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


def _write(models, directory):
    """Writes ONNX models. One file has the large constants of all models, equal ones once."""
    import onnx

    offsets = {}  # by content
    with open(directory / ONNX_WEIGHTS_FILE, "wb") as file:
        for name, model in models.items():
            model.graph.ClearField("value_info")  # Inferred shapes, which runtimes infer again.
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
