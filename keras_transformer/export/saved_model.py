"""TensorFlow SavedModel: text in, translation or tree out, for TensorFlow Serving or in-process."""

import os
import pathlib
from typing import Any

from keras_transformer.export.formats import export_folder
from keras_transformer.export.steps import with_dtype
from keras_transformer.inference.model_directory import IN_SAVED_MODEL
from keras_transformer.inference.pipeline import Pipeline
from keras_transformer.inference.precision import choose_precision
from keras_transformer.inference.tasks import get_task, load_entry
from keras_transformer.models import Ensemble

# Numbers of subwords of the texts in each request to warm up: one short text, then a padded batch.
_LENGTHS = ((8,), (24, 16, 8, 1))


def export_saved_model(
    translator: Pipeline,
    directory: str | os.PathLike,
    search: Any = None,
    dtype: str | None = None,
    num_streams: int = 1,
) -> pathlib.Path:
    """Writes a SavedModel from raw strings to answers, with the tokenizers and the search.

    The SavedModel holds each weight of the model once and no optimizer. It needs only TensorFlow
    and the SentencePiece operations of `tensorflow_text`. Batch and lengths are dynamic, and every
    output has one row for each text. The signatures of a translator:

    - `serving_default`: `text` -> `translation`, `score`, `truncated`;
    - `n_best`: `text` -> `translations` and `scores` `[batch, n]`, best first, and `truncated`.
      `n` is the search's `n_best`, or the beam size if that is 1;
    - `score`: `text` and `translation` -> `log_probability`, `num_tokens`, and for each token
      `tokens` and `token_log_probabilities`, padded with `""` and 0; `truncated`;
    - `attention`: `text` and `translation` -> `attention` `[batch, target, source]`, the mean over
      the heads of the last but one decoder block, 0 where padded; row t belongs to the step that
      predicts target token t; `source_tokens`, `target_tokens`; `truncated`;
    - `limits`: `text` -> `num_tokens` of the text, `max_source_tokens`, `max_translation_tokens`,
      `truncated`, and `settings`, JSON with the search and the lengths.

    The answers are those of `Translator.translate` with `long_texts="truncate"`, `hypotheses` and
    `score`. A translator's `shortlist` becomes a table in the graph; the sentences that are
    searched together share their candidates. Text without subwords gives an empty translation and
    score 0. Invalid UTF-8 is read as U+FFFD. A source longer than the translator's
    `max_source_length`, or a given translation longer than any that can be found, is cut, and
    `truncated` says so. docs/parsing.md lists the signatures of a parser.

    `assets.extra/tf_serving_warmup_requests` holds requests for every signature, which TensorFlow
    Serving answers before it serves the model. `assets.extra/model` is a model directory without
    weights; `keras-transformer attend` reads it with the weights of the SavedModel. An `Ensemble`
    has none. The files are written aside and renamed; a complete export replaces an
    earlier one.

    Args:
        translator: a `Translator` or another `Pipeline`.
        directory: the folder to write; missing, empty, or an earlier export. TensorFlow Serving
            expects its last part to be a version number, as in `models/en_de/1`.
        search: a `BeamSearch`, `GreedySearch` or `Sampling`; None for the translator's.
        dtype: `"float32"`, or `"bfloat16"` to store and compute in half the bytes, whose
            rounding changes some answers; `"auto"` for the one that this machine multiplies
            faster; None for the dtype of the model.
        num_streams: number of parts of a request that are searched at the same time, each by one
            thread. On a CPU, as many streams as cores with one thread per operation
            (`tf.config.threading.set_intra_op_parallelism_threads(1)`, or the model server's
            `--tensorflow_intra_op_parallelism=1`) are faster for many sentences than one stream
            with several threads per operation. The answers stay the same.

    Returns:
        `pathlib.Path`: the directory.

    Raises:
        UserError: if the directory holds other files, Keras does not run on TensorFlow, or the
            search of a parser is not constrained to well-formed trees.
        ValueError: if `dtype` or `num_streams` is not allowed.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_saved_model(translator, "saved_models/en_de/1")  # doctest: +SKIP
    """
    directory = pathlib.Path(directory)
    options = {"dtype": dtype, "num_streams": num_streams}
    with export_folder(translator, directory, "saved_model", **options) as aside:
        import tensorflow as tf

        from keras_transformer.export.served_module import ServedModule

        dtype = choose_precision(dtype, translator.model.config)
        task = get_task(translator.task)
        task.check_served(translator)
        functions = load_entry(task.served_functions)
        model = translator.model if dtype is None else with_dtype(translator.model, dtype)
        search = search or translator.search
        module = ServedModule(functions, translator, model, search, num_streams)
        signatures = {name: getattr(module, name) for name in functions.inputs}
        tf.saved_model.save(module, str(aside), signatures=signatures)
        if not isinstance(model, Ensemble):
            translator.write(aside / IN_SAVED_MODEL, search, precision=model.dtype_policy.name)
        # TensorFlow Serving's folders are numbers below a folder with the model's name.
        path = directory.resolve()
        name = path.parent.name if path.name.isdecimal() else path.name
        requests = [
            (signature, dict.fromkeys(inputs, texts))
            for texts in warmup_texts(translator.source_tokenizer)
            for signature, inputs in functions.inputs.items()
        ]
        _write_warmup_requests(aside, requests, name or "translator")
    return directory


def warmup_texts(tokenizer: Any) -> list[list[str]]:
    """Returns the texts of each request, made of the vocabulary's own pieces."""
    # The reserved pieces come first and, in some vocabularies, the 256 single bytes.
    first = 260 if tokenizer.vocab_size > 300 else 4
    # The stride leaves no piece of a usual vocabulary out, and neighbours are far apart.
    pieces = [
        first + 7919 * place % (tokenizer.vocab_size - first) for place in range(max(_LENGTHS[1]))
    ]
    return [[tokenizer.decode(pieces[:length]) for length in lengths] for lengths in _LENGTHS]


def _write_warmup_requests(directory, requests, model_name: str) -> None:
    """Writes `assets.extra/tf_serving_warmup_requests` into a SavedModel.

    The file holds `PredictionLog` messages of tensorflow_serving/apis/prediction_log.proto. A
    request is a signature's name and its texts by name of the input.
    """
    import tensorflow as tf

    path = directory / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            # A PredictRequest: its model_spec, with name and signature_name, and its inputs.
            request = _field(1, _field(1, model_name.encode()) + _field(3, signature.encode()))
            for name, texts in inputs.items():
                tensor = tf.make_tensor_proto(texts, dtype=tf.string).SerializeToString()
                request += _field(2, _field(1, name.encode()) + _field(2, tensor))
            # `request` is the first field of a PredictLog, the sixth of a PredictionLog.
            writer.write(_field(6, _field(1, request)))


def _field(number: int, payload: bytes) -> bytes:
    """Returns a field of a protobuf message: its tag, the length as a varint, and the payload."""
    size, rest = [], len(payload)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + payload
