"""TensorFlow Serving's warm-up file: requests that the server answers before it is ready."""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Numbers of subwords of the texts in each request: one short text, then a padded batch.
_LENGTHS = ((8,), (24, 16, 8, 1))


def warmup_texts(tokenizer: Any) -> list[list[str]]:
    """Returns the texts of each request, made of the vocabulary's own pieces."""
    # The reserved pieces come first and, in some vocabularies, the 256 single bytes.
    first = 260 if tokenizer.vocab_size > 300 else 4
    # The stride leaves no piece of a usual vocabulary out, and neighbours are far apart.
    pieces = [
        first + 7919 * place % (tokenizer.vocab_size - first) for place in range(max(_LENGTHS[1]))
    ]
    return [[tokenizer.decode(pieces[:length]) for length in lengths] for lengths in _LENGTHS]


def write_warmup_requests(
    directory: str | os.PathLike,
    requests: Iterable[tuple[str, Mapping[str, Sequence[str]]]],
    model_name: str,
) -> pathlib.Path:
    """Writes `assets.extra/tf_serving_warmup_requests` into a SavedModel.

    The server answers these requests after loading a version and before serving it, so that no user
    waits for TensorFlow's first call of a signature. The file holds `PredictionLog` messages of
    tensorflow_serving/apis/prediction_log.proto in TFRecord format. A request is a signature's name
    and its texts by name of the input; the server ignores the model's name.
    """
    import tensorflow as tf

    path = pathlib.Path(directory) / "assets.extra" / "tf_serving_warmup_requests"
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
    return path


def _field(number: int, payload: bytes) -> bytes:
    """Returns a field of a protobuf message: its tag, the length as a varint, and the payload."""
    size, rest = [], len(payload)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + payload
