"""Export to LiteRT, formerly TensorFlow Lite, for phones: encoder and one decoder step."""

import os
import pathlib
import tempfile

from keras_transformer.export.formats import export_folder
from keras_transformer.export.steps import concrete_functions, convertible
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import LITERT_FILE


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

        model = convertible(translator.model, int8_embeddings=quantization == "int8")
        functions = concrete_functions(model)
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
