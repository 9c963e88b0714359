"""LiteRT, formerly TensorFlow Lite: the encoder and one step of the decoder, for phones."""

import pathlib
import tempfile

from keras_transformer.export.formats import export_folder
from keras_transformer.export.steps import (
    check_tensorflow,
    concrete_functions,
    exportable_model,
    with_dtype,
)


def export_litert(translator, directory) -> pathlib.Path:
    """Writes `model.tflite`, in float32, and the tokenizer's file.

    Its two signatures, with batch and lengths dynamic, consist of LiteRT's own operations, and
    share the weights:

    - `encode`: `source` int32 `[batch, source_length]`, each row with EOS, padded with 0 ->
      `source_mask` and, for every decoder block i, `cross_key_i` and `cross_value_i`.
    - `decode`: `tokens` int32 `[rows]`, the last token of each row (BOS at first), what `encode`
      gave, and `self_key_i`, `self_value_i` `[rows, heads, target_length, dim]`, of length 0 at
      first -> `logits` float32 `[rows, vocabulary]`, and `new_self_key_i`, `new_self_value_i`,
      which the next step is given. `rows` may be a multiple of `batch`, as for the beams of a
      sentence, those of the first sentence first.

    docs/runtimes.md has a greedy search around them. The translator's own search is not part of the
    export; a warning names its constraints.

    Args:
        translator: a `Translator`.
        directory: where to; missing, empty, or an earlier export.

    Returns:
        `pathlib.Path`: the directory.

    Raises:
        UserError: if Keras does not run on TensorFlow, or the directory holds anything else.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_litert(translator, "exports/en_de")  # doctest: +SKIP
    """
    check_tensorflow("LiteRT export")
    model = with_dtype(exportable_model(translator, "LiteRT export"), "float32")
    with export_folder(directory, "litert") as aside:
        (aside / "model.tflite").write_bytes(_convert(model))
        translator.tokenizers.save(aside)
    return pathlib.Path(directory)


def _convert(model) -> bytes:
    import tensorflow as tf

    functions = concrete_functions(model)
    module = tf.Module()
    # Held by the module, the weights are saved; they become constants in the conversion.
    module.model_variables = [weight.value for weight in model.weights]
    with tempfile.TemporaryDirectory() as path:
        tf.saved_model.save(module, path, signatures=functions)
        converter = tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=list(functions))
        # Not TensorFlow's operations ("Flex"), which most builds of the runtime do not have.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return converter.convert()
