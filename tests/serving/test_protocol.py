"""JSON of requests and answers, by the examples of TensorFlow Serving's own page and tests.

They are in tensorflow_serving/g3doc/api_rest.md and tensorflow_serving/util/json_tensor_test.cc.
"""

import json

import numpy as np
import pytest

from keras_transformer.serving.protocol import RequestError, read_request, to_answer, to_texts

PAIR = ("text", "translation")


def texts_of(request, names=("text",)):
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return to_texts(read_request(body), names)


@pytest.mark.parametrize(("request_", "texts"), [
    ({"inputs": ["foo", "bar"]}, [b"foo", b"bar"]),
    ({"instances": [{"text": "foo"}, {"text": "bär"}]}, [b"foo", "bär".encode()]),
    ({"instances": [{"b64": "aW1hZ2UgYnl0ZXM="}, "x"]}, [b"image bytes", b"x"]),
    ({"instances": [{"text": {"b64": "/w=="}}]}, [b"\xff"]),
    (b'{"instances": ["a\xffb"]}', [b"a\xffb"]),
])  # fmt: skip
def test_texts_of_one_input(request_, texts):
    assert texts_of(request_) == {"text": texts}


@pytest.mark.parametrize(("request_", "names", "error"), [
    (b"", None, "JSON Parse error: The document is empty"),
    (b'{"instances": [1], "nested":' + b"[" * 200_000, None, "JSON Parse error: "),
    (b'{"instances": ["\\ud800"]}', None, "surrogate pair in string is invalid"),
    ([1], None, r"JSON Value: \[1\] Is not object"),
    ({"signature_name": 5, "instances": ["a"]}, None, "must be a string value"),
    ({"instances": ["a"], "inputs": ["a"]}, None, "Not formatted correctly expecting only one"),
    ({}, None, "Missing 'inputs' or 'instances' key"),
    ({"instances": "a"}, None, "Expecting 'instances' to be an list/array"),
    ({"instances": []}, None, "No values in 'instances' array"),
    ({"instances": [1]}, None, "JSON Value: 1 Type: Number is not of expected type: string"),
    ({"inputs": "a"}, None, "is not a list of strings"),
    ({"inputs": {"texts": ["a"]}}, None, "Missing named input: text in 'inputs' object."),
    ({"instances": [{"b64": "%"}]}, None, "Unable to base64 decode"),
    ({"instances": ["a", {"text": "a"}]}, None, "but got object at item 1"),
    ({"instances": ["a"]}, PAIR, "instances is a plain list, but expecting"),
    ({"instances": [{"text": "a"}]}, PAIR, 'element: 0 .*{"text": "a"} keys must be equal to'),
    ({"inputs": {"text": ["a"], "translation": []}}, PAIR, "same number .*'translation': 0"),
])  # fmt: skip
def test_errors(request_, names, error):
    with pytest.raises(RequestError, match=error) as raised:
        texts_of(request_, names or ("text",))
    assert raised.value.status == 400
    assert len(str(raised.value)) < 400


def test_answers_in_rows_and_columns():
    outputs = {
        "translation": np.array(["Größe".encode(), b"\xff"], object),
        "score": np.array([-0.1, float("-inf")], np.float32),
        "truncated": np.array([True, False]),
        "num_tokens": np.array([3, 4], np.int32),
    }
    columns = {
        "translation": ["Größe", "\ufffd"],
        "score": [-0.1, float("-inf")],  # not the float64 -0.10000000149011612
        "truncated": [True, False],
        "num_tokens": [3, 4],
    }
    rows = [{name: values[index] for name, values in columns.items()} for index in (0, 1)]
    assert to_answer({"inputs": {}}, outputs) == {"outputs": columns}
    assert to_answer({"instances": []}, outputs) == {"predictions": rows}
    assert json.dumps(rows[1]["score"]) == "-Infinity"


def test_a_single_output_has_no_name():
    outputs = {"text": np.array([b"a"], object)}
    assert to_answer({"inputs": []}, outputs) == {"outputs": ["a"]}
    assert to_answer({"instances": []}, outputs) == {"predictions": ["a"]}
