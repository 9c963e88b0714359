"""TensorFlow Serving's warm-up file: requests that the server answers before it is ready."""

import pathlib

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FOLDER = "assets.extra"
FILE = "tf_serving_warmup_requests"

# Numbers of subwords of the texts in each request: one short text, then a padded batch.
_LENGTHS = ((8,), (24, 16, 8, 1))

# What the file needs of tensorflow_serving/apis/{prediction_log,predict,model}.proto, which comes
# with no package of ours: the fields by number. A map is a list of entries, and an embedded
# message, here `tensorflow.TensorProto`, is its bytes: both are the same on the wire.
_PACKAGE = "keras_transformer.serving"
_MESSAGES = {
    "PredictionLog": {"predict_log": (6, "PredictLog")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "InputsEntry")},
    "ModelSpec": {"name": (1, "string"), "signature_name": (3, "string")},
    "InputsEntry": {"key": (1, "string"), "value": (2, "bytes")},
}


def warmup_texts(tokenizer) -> list[list[str]]:
    """Returns the texts of each request, made of the vocabulary's own pieces.

    Args:
        tokenizer: a tokenizer of `keras_transformer.data`.

    Returns:
        List of batches, each a list of `str`.
    """
    # Behind the reserved pieces and, in a vocabulary that has them, the 256 single bytes.
    first = 260 if tokenizer.vocab_size > 300 else 4
    # A stride that leaves no piece of a usual vocabulary out, far from its neighbours.
    pieces = [
        first + 7919 * place % (tokenizer.vocab_size - first) for place in range(max(_LENGTHS[1]))
    ]
    return [[tokenizer.decode(pieces[:length]) for length in lengths] for lengths in _LENGTHS]


def write_warmup_requests(directory, requests, model_name="translator") -> pathlib.Path:
    """Writes `assets.extra/tf_serving_warmup_requests` into a SavedModel.

    The server answers these requests after loading a version and before it serves it, so that the
    first user does not wait for what TensorFlow sets up at a signature's first call. A file of
    `tensorflow.serving.PredictionLog` messages in TFRecord format.

    Args:
        directory: the SavedModel.
        requests: list of `(signature, inputs)`: a name, and a dict of lists of `str` by the name
            of the input.
        model_name: the model's name in the requests. The server does not look at it.

    Returns:
        `pathlib.Path` of the file.
    """
    import tensorflow as tf

    path = pathlib.Path(directory) / FOLDER / FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            writer.write(_prediction_log(model_name, signature, inputs))
    return path


def _prediction_log(model_name, signature, inputs) -> bytes:
    import tensorflow as tf

    log = _message_class("PredictionLog")()
    request = log.predict_log.request
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature
    for name, texts in inputs.items():
        tensor = tf.make_tensor_proto(texts, dtype=tf.string)
        request.inputs.add(key=name, value=tensor.SerializeToString())
    return log.SerializeToString()


def _message_class(name):
    file = descriptor_pb2.FileDescriptorProto(
        name="keras_transformer/serving.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            described.field.add(name=field, number=number, **_field_type(kind))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _field_type(kind):
    field = descriptor_pb2.FieldDescriptorProto
    if kind in ("string", "bytes"):
        scalar = field.TYPE_STRING if kind == "string" else field.TYPE_BYTES
        return {"type": scalar, "label": field.LABEL_OPTIONAL}
    label = field.LABEL_REPEATED if kind.endswith("Entry") else field.LABEL_OPTIONAL
    return {"type": field.TYPE_MESSAGE, "type_name": f".{_PACKAGE}.{kind}", "label": label}
