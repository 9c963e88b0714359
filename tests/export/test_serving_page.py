"""The requests of docs/serving.md get the answers of the SavedModel."""

import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.serving.models import find_models
from tests.closeness import assert_close
from tests.serving.echo import serving

PAGE = pathlib.Path(__file__).parents[2].joinpath("docs/serving.md").read_text("utf-8")
REST = re.findall(r"```bash\n(curl .*?)```(?:\n\n```json\n(.*?)```)?", PAGE, re.DOTALL)
NEEDS_API = "pip install tensorflow-serving-api"


def python_block(part):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [block] = [block for block in blocks if part in block]
    return block


def shape_of(value):
    """Nested lists of JSON as the shape and the kind of what is in them."""
    array = np.array(value)
    return array.ndim, "text" if array.dtype.kind == "U" else array.dtype.kind


@pytest.fixture(scope="module")
def port(exported, loaded):
    """The port of a server of the SavedModel."""
    model = find_models([str(exported)])["en_de"][1]
    with pytest.MonkeyPatch.context() as patch:  # it is loaded already
        patch.setattr(tf.saved_model, "load", lambda path: loaded)
        model.load()
        assert set(model.signatures) == set(loaded.signatures)
    with serving(model) as client:
        yield client.port


@pytest.fixture(scope="module")
def ask(port):
    """Runs a curl command of the page."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")

    def run(command):
        command = command.replace("http://localhost:8501/", f"http://127.0.0.1:{port}/")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("command, shown", [pair for pair in REST if "predict" in pair[0]])
def test_rest_requests_and_answers(command, shown, ask, loaded):
    """The answers have the forms on the page, and the numbers of the SavedModel in Python."""
    request = json.loads(re.search(r"-d '(\{.*\})'", command, re.DOTALL)[1])
    shown, answer = json.loads(shown), ask(command)
    signature = loaded.signatures[request.get("signature_name", "serving_default")]
    columns = request.get("inputs")
    if columns is None:
        rows = request["instances"]
        rows = [row if isinstance(row, dict) else {"text": row} for row in rows]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        assert len(shown["predictions"]) == len(answer["predictions"]) == len(rows)
        shown, answer = (
            {name: [row[name] for row in rows["predictions"]] for name in rows["predictions"][0]}
            for rows in (shown, answer)
        )
    else:
        shown, answer = shown["outputs"], answer["outputs"]
    expected = signature(**{name: tf.constant(texts) for name, texts in columns.items()})
    assert shown.keys() == answer.keys() == expected.keys()
    for name, tensor in expected.items():
        assert shape_of(shown[name]) == shape_of(answer[name]), name
        assert len(shown[name]) == len(answer[name])
        if tensor.dtype == tf.string:
            tensor = np.char.decode(tensor.numpy().astype(bytes), "utf-8")
            assert answer[name] == tensor.tolist()
        else:
            assert_close(answer[name], tensor)


def test_the_status_on_the_page(ask):
    [(command, shown)] = [pair for pair in REST if "models/en_de\n" in pair[0]]
    assert ask(command) == json.loads(shown)


def test_metadata_are_those_of_the_saved_model(ask, exported):
    [(command, _)] = [pair for pair in REST if "metadata" in pair[0]]
    answer = ask(command)
    assert answer["model_spec"] == {"name": "en_de", "signature_name": "", "version": "1"}
    content = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
    definitions = content.meta_graphs[0].signature_def
    shown = answer["metadata"]["signature_def"]["signature_def"]
    assert shown.keys() == {name for name in definitions if not name.startswith("__")}
    for name, signature in shown.items():
        expected = json_format.MessageToDict(
            definitions[name],
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        assert signature["method_name"] == expected["method_name"]
        for side in ("inputs", "outputs"):
            # The names of tensors in the graph tell a client nothing.
            without = [{**tensor, "name": ""} for tensor in signature[side].values()]
            expected_ = [{**expected[side][key], "name": ""} for key in signature[side]]
            assert signature[side].keys() == expected[side].keys()
            assert without == expected_


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
