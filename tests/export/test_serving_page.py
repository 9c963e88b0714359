"""What docs/serving.md sends to a model server is what the SavedModel takes and answers."""

import concurrent.futures
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

PAGE = pathlib.Path(__file__).parents[2].joinpath("docs/serving.md").read_text("utf-8")
REST = re.findall(r"-d '(\{.*?\})'\n```\n\n```json\n(.*?)```", PAGE, re.DOTALL)
NEEDS_API = "pip install tensorflow-serving-api"


def python_block(part):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [block] = [block for block in blocks if part in block]
    return block


def shape_of(value):
    """Nested lists of JSON as the shape and the kind of what is in them."""
    array = np.array(value)
    return array.ndim, "text" if array.dtype.kind == "U" else array.dtype.kind


@pytest.mark.parametrize("request_text, answer_text", REST)
def test_rest_requests_and_answers(request_text, answer_text, loaded):
    """By TensorFlow Serving's rules for JSON: rows in `instances`, or columns in `inputs`."""
    request, answer = json.loads(request_text), json.loads(answer_text)
    signature = loaded.signatures[request.get("signature_name", "serving_default")]
    columns = request.get("inputs")
    if columns is None:
        rows = request["instances"]
        rows = [row if isinstance(row, dict) else {"text": row} for row in rows]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
    found = signature(**{name: tf.constant(texts) for name, texts in columns.items()})
    shown = answer.get("outputs")
    if shown is None:
        assert len(answer["predictions"]) == len(columns["text"])
        shown = {name: [row[name] for row in answer["predictions"]] for name in found}
        assert answer["predictions"][0].keys() == found.keys()
    assert shown.keys() == found.keys()
    for name, tensor in found.items():
        array = tensor.numpy()
        kind = "text" if array.dtype == object else array.dtype.kind
        assert shape_of(shown[name]) == (array.ndim, kind), name
        assert len(shown[name]) == len(array)


def test_every_kind_of_request_is_shown():
    assert len(REST) == 4


def test_grpc_client(loaded):
    """The page's client against a server that feeds its tensors to the signatures."""
    grpc = pytest.importorskip("grpc", reason=NEEDS_API)
    pytest.importorskip("tensorflow_serving.apis.predict_pb2", reason=NEEDS_API)
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    requests = []

    class Server(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            requests.append(request)
            inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
            inputs = {name: tf.constant(texts, tf.string) for name, texts in inputs.items()}
            response = predict_pb2.PredictResponse()
            outputs = loaded.signatures[request.model_spec.signature_name](**inputs)
            for name, tensor in outputs.items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(tensor.numpy()))
            return response

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Server(), server)
        port = server.add_insecure_port("localhost:0")
        server.start()
        names = {}
        exec(python_block("prediction_service_pb2_grpc").replace("8500", str(port)), names)
        names["channel"].close()
        server.stop(0).wait()
    expected = loaded.signatures["serving_default"](text=tf.constant(names["text"]))
    assert names["answers"] == [text.decode() for text in expected["translation"].numpy()]
    assert np.isfinite(names["scores"]).all() and names["scores"].shape == (2,)

    [shown] = re.findall(r"As text, the first request is\n\n```\n(.*?)```", PAGE, re.DOTALL)
    from google.protobuf import text_format

    assert text_format.Parse(shown, predict_pb2.PredictRequest()) == requests[0]


def test_own_warmup_requests(tmp_path):
    pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2", reason=NEEDS_API)
    from tensorflow_serving.apis import prediction_log_pb2

    block = python_block("TFRecordWriter")
    path = tmp_path / "requests"
    exec(re.sub(r'path = ".*"', f"path = {str(path)!r}", block), {})
    [record] = tf.data.TFRecordDataset(str(path))
    request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
    assert tf.make_ndarray(request.inputs["text"]).tolist() == [b"Two men are talking."]
