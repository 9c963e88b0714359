"""Export to a TensorFlow SavedModel, which takes text and returns translations or trees."""

import os
import pathlib
from typing import Any

from keras_transformer.data.languages import LANGUAGES
from keras_transformer.export.formats import export_folder
from keras_transformer.inference.model_directory import choose_precision
from keras_transformer.inference.pipeline import Pipeline
from keras_transformer.inference.tasks import get_task
from keras_transformer.layers.composite_layer import quantized_parts
from keras_transformer.layouts import IN_SAVED_MODEL, WARMUP_FILE
from keras_transformer.models import Transformer

# Numbers of subwords of the texts in each warm-up request: one short text, then a padded batch.
_LENGTHS = ((8,), (24, 16, 8, 1))


def export_saved_model(
    translator: Pipeline,
    directory: str | os.PathLike,
    search: Any = None,
    dtype: str | None = None,
    num_streams: int = 1,
    long_texts: str = "split",
    quantization: str | None = None,
) -> pathlib.Path:
    """Writes a SavedModel that maps strings to answers of the search; returns `directory`.

    It needs only TensorFlow and the SentencePiece operations of `tensorflow_text`. The signatures
    of a translator, which docs/serving.md describes, are `serving_default`, `n_best`, `score`,
    `attention` and `limits`; docs/parsing.md has those of a parser.

    The answers equal those of `Translator.translate`, `hypotheses` and `score`; only a word that is
    longer than a source may be is cut, not split. A translator's `shortlist` becomes a table in the
    graph; sentences that are searched together share their candidates. Invalid UTF-8 is read as
    U+FFFD. What is cut sets `truncated`.

    TensorFlow Serving warms up with requests for every signature. `keras-transformer attend` reads
    the SavedModel by the model directory without weights in `assets.extra/model`, which an
    `Ensemble` and a quantized model do not have.

    Args:
        translator: A `Translator` or another `Pipeline`.
        directory: A new or empty folder, or an earlier export, which is replaced. TensorFlow
            Serving expects its last part to be a version number, as in `models/en_de/1`.
        search: A `BeamSearch`, `GreedySearch` or `Sampling`; None for the translator's.
        dtype: `"float32"`; `"bfloat16"`, which halves the size but changes some answers by
            rounding; `"auto"` for the faster of the two on this machine; None for the model's.
        num_streams: Number of parts of a request that are searched at the same time, each by one
            thread. On a CPU, many sentences are translated faster with one stream per core and one
            thread per operation (`tf.config.threading.set_intra_op_parallelism_threads(1)`, or the
            model server's `--tensorflow_intra_op_parallelism=1`). The answers stay the same, unless
            they are sampled or use a shortlist.
        long_texts: `"split"`: the signature `serving_default` of a translator translates a text of
            several sentences in parts, as `Translator.translate` does; its score is then the mean
            of those of the parts. `"truncate"`: as a whole.
        quantization: `"int8"`: matrices of a quarter of the size, with which large models are
            faster; some answers change by rounding. An export that is made on an x86 processor runs
            on these only. None for matrices in `dtype`.

    Raises:
        UserError: If the directory holds other files, Keras does not run on TensorFlow, or the
            search of a parser is not constrained to well-formed trees.
        ValueError: If `dtype`, `num_streams` or `quantization` is not allowed.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_saved_model(translator, "saved_models/en_de/1")  # doctest: +SKIP
    """
    directory = pathlib.Path(directory)
    options = {"num_streams": num_streams, "long_texts": long_texts, "quantization": quantization}
    with export_folder(translator, directory, "saved_model", dtype=dtype, **options) as aside:
        import tensorflow as tf

        dtype = choose_precision(dtype)
        task = get_task(translator.task)
        model, search = translator.model, search or translator.search
        functions = task.served_functions(translator, search, dtype, **options)
        signatures = {name: getattr(functions.module, name) for name in functions.inputs}
        tf.saved_model.save(functions.module, str(aside), signatures=signatures)
        if isinstance(model, Transformer) and not (quantization or quantized_parts(model)):
            translator.write(aside / IN_SAVED_MODEL, search, precision=functions.precision)
        # TensorFlow Serving's folders are numbers below a folder with the model's name.
        path = directory.resolve()
        name = path.parent.name if path.name.isdecimal() else path.name
        requests = [
            (signature, {n: [""] * len(texts) if n in LANGUAGES else texts for n in inputs})
            for texts in warmup_texts(translator.source_tokenizer)
            for signature, inputs in functions.inputs.items()
        ]
        _write_warmup_requests(aside, requests, name or "translator")
    return directory


def warmup_texts(tokenizer: Any) -> list[list[str]]:
    """Returns the texts of each warm-up request, made of pieces of the vocabulary."""
    # The special pieces come first, followed in some vocabularies by the 256 bytes.
    first = 260 if tokenizer.vocab_size > 300 else 4
    # The stride is prime, so the pieces differ and come from the whole vocabulary.
    num_pieces, longest = tokenizer.vocab_size - first, max(_LENGTHS[1])
    pieces = [first + 7919 * number % num_pieces for number in range(longest)]
    code = "".join(tokenizer.languages[:1])
    return [[code + tokenizer.decode(pieces[:n]) for n in lengths] for lengths in _LENGTHS]


def _write_warmup_requests(directory, requests, model_name):
    """Writes `PredictionLog` messages of tensorflow_serving/apis/prediction_log.proto.

    Each of `requests` is the name of a signature and a dict from the names of its inputs to texts.
    """
    import tensorflow as tf

    path = directory / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            # A PredictRequest has a model_spec, with name and signature_name, and inputs.
            request = _field(1, _field(1, model_name.encode()) + _field(3, signature.encode()))
            for name, texts in inputs.items():
                tensor = tf.make_tensor_proto(texts, dtype=tf.string).SerializeToString()
                request += _field(2, _field(1, name.encode()) + _field(2, tensor))
            # `request` is field 1 of a PredictLog, which is field 6 of a PredictionLog.
            writer.write(_field(6, _field(1, request)))


def _field(number, payload):
    """Returns a field of a protobuf message: its tag, the length as a varint, and the payload."""
    size, rest = [], len(payload)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + payload
