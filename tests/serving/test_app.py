"""The server's addresses, answers and errors are those of TensorFlow Serving."""

import pytest

from tests.serving.echo import EchoModel, serving


@pytest.fixture(scope="module")
def client():
    with serving(EchoModel(version=1), EchoModel(version=3)) as client:
        yield client


def test_rows_and_columns(client):
    status, answer = client.predict({"instances": ["ab", "ü"]})
    assert (status, answer) == (
        200,
        {"predictions": [{"upper": "AB", "size": 2}, {"upper": "ü", "size": 2}]},
    )
    status, answer = client.predict({"inputs": {"text": ["ab"]}}, "echo/versions/1")
    assert (status, answer) == (200, {"outputs": {"upper": ["AB"], "size": [2]}})


def test_status_of_versions(client):
    state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    answer = {"model_version_status": [{"version": "1", **state}, {"version": "3", **state}]}
    assert client.send("GET", "/v1/models/echo") == (200, answer)
