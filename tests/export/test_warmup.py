"""TensorFlow Serving's warm-up file: read with TensorFlow Serving's own messages, and answered."""

import pytest
import tensorflow as tf

from keras_transformer.export.saved_model import warmup_texts
from tests.tiny_translator import tiny_tokenizer

SIGNATURES = {"serving_default", "n_best", "score", "attention", "limits"}


def records(directory):
    path = directory / "assets.extra" / "tf_serving_warmup_requests"
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


@pytest.mark.slow
def test_every_signature_answers_its_requests(exported, loaded):
    prediction_log_pb2 = pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2", reason="pip install tensorflow-serving-api"
    )
    sizes = set()
    for record in records(exported):
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        assert request.model_spec.name == "en_de"
        signature = request.model_spec.signature_name
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        assert inputs.keys() == loaded.signatures[signature].structured_input_signature[1].keys()
        loaded.signatures[signature](**{k: tf.constant(v, tf.string) for k, v in inputs.items()})
        sizes.add((signature, len(inputs["text"])))
        # Nothing that this version of the messages does not know.
        assert prediction_log_pb2.PredictionLog.FromString(record).ByteSize() == len(record)
    assert sizes == {(name, size) for name in SIGNATURES for size in (1, 4)}


def test_bytes_are_those_of_the_messages_written_by_hand(exported):
    """Tags and lengths by hand, where tensorflow-serving-api is not installed."""

    def field(number, payload):
        assert len(payload) < 2**14
        low, high = len(payload) & 127, len(payload) >> 7
        size = bytes([low | 128, high]) if high else bytes([low])
        return bytes([number << 3 | 2]) + size + payload

    [text], _ = warmup_texts(tiny_tokenizer())
    tensor = tf.make_tensor_proto([text]).SerializeToString()
    spec = field(1, b"en_de") + field(3, b"serving_default")
    request = field(1, spec) + field(2, field(1, b"text") + field(2, tensor))
    assert records(exported)[0] == field(6, field(1, request))
