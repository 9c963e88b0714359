"""The server's addresses, answers and errors, which are TensorFlow Serving's, and its limits."""

import contextlib
import gzip
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.serving.echo import Echo, EchoModel, Slow, serving


@pytest.fixture(scope="module")
def client():
    models = EchoModel(version=1), EchoModel(version=3, score=Echo("text", "translation"))
    limits = {"max_body_bytes": 100_000, "max_text_bytes": 200}
    with serving(*models, allowed_hosts=["Proxy.example"], **limits) as client:
        yield client


def test_rows_and_columns(client):
    rows = [{"upper": "AB", "size": 2}, {"upper": "ü", "size": 2}]
    assert client.predict({"instances": ["ab", "ü"]}) == (200, {"predictions": rows})
    columns = {"upper": ["AB"], "size": [2]}
    assert client.predict({"inputs": {"text": ["ab"]}}) == (200, {"outputs": columns})
    request = {"signature_name": "score", "inputs": {"text": ["ab"], "translation": ["x"]}}
    assert client.predict(request) == (200, {"outputs": columns})


def test_versions(client):
    state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    versions = [{"version": "1", **state}, {"version": "3", **state}]
    assert client.send("GET", "/v1/models/echo") == (200, {"model_version_status": versions})
    status = client.send("GET", "/v1/models/echo/versions/3")
    assert status == (200, {"model_version_status": versions[1:]})
    models = [{"name": "echo", "model_version_status": versions}]
    assert client.send("GET", "/health") == (200, {"models": models})
    request = {"signature_name": "score", "inputs": {"text": [], "translation": []}}
    assert client.predict(request, "echo")[0] == 200  # the newest
    status, answer = client.predict(request, "echo/versions/1")
    error = 'Serving signature name: "score" not found in signature def'
    assert (status, answer) == (400, {"error": error})


@pytest.mark.parametrize(("method", "path", "status", "error"), [
    ("GET", "/v1/models/other", 404, "Could not find any versions of model other"),
    ("GET", "/v1/models/echo/versions/2", 404, "Could not find version 2 of model echo"),
    ("POST", "/v1/models/echo/versions/2:predict", 404, "Specific(echo, 2)"),
    ("POST", "/v1/models/echo:classify", 501, "classify"),
    ("POST", "/v1/models", 405, "Malformed request: POST /v1/models"),
    ("CONNECT", "/v1/models", 405, "Malformed request: TRACE /v1/models"),
    ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 400, "Malformed request"),
    ("GET", "/v1/models/echo/versions/" + 5_000 * "1", 400, "Malformed request"),
])  # fmt: skip
def test_addresses_that_are_wrong(client, method, path, status, error):
    found, answer = client.send(method, path, b"" if method == "POST" else None)
    assert (found, list(answer)) == (status, ["error"])
    assert error in answer["error"]


def test_limits_of_size(client):
    for instances, status, error in (
        (["a", "ü" * 101], 400, "A text may have at most 200 bytes. Received: 202"),
        ([""] * 1_001, 400, "A request may have at most 1,000 texts. Received: 1,001"),
        (["a" * 100] * 1_000, 413, "The body of a request may have at most 100,000 bytes"),
    ):
        assert client.predict({"instances": instances}) == (status, {"error": error})


@pytest.mark.parametrize(("coding", "pack", "status"), [
    ("gzip", gzip.compress, 200),
    ("gzip", lambda body: gzip.compress(body)[:-1], 400),
    ("gzip", lambda body: gzip.compress(body + b" " * 10_000_000), 413),
    ("br", bytes, 415),
])  # fmt: skip
def test_a_body_may_be_packed_within_the_limit_of_its_size(client, coding, pack, status):
    body, before = pack(b'{"instances": ["ab"]}'), memory()
    headers = {"Content-Encoding": coding}
    assert client.send("POST", "/v1/models/echo:predict", body, headers)[0] == status
    assert memory() - before < 5_000_000


@pytest.mark.parametrize(("headers", "status"), [
    ({"Host": "evil.example"}, 403),  # DNS rebinding
    ({"Origin": "https://evil.example"}, 403),  # an old browser
    ({"Host": "proxy.example:80"}, 200),
    ({"Host": "[::1]:8501", "Origin": "http://[::1]:8501", "Sec-Fetch-Site": "same-origin"}, 200),
])  # fmt: skip
def test_pages_of_other_sites_are_refused(client, headers, status):
    for method, path in (("POST", "/v1/models/echo:predict"), ("GET", "/metrics")):
        found, answer = client.send(method, path, b'{"instances": ["ab"]}', headers)
        assert found == status
        assert status == 200 or answer["error"].startswith("A page of another site may not ask")


HEAD = b"POST /v1/models/echo:predict HTTP/1.1\r\nHost: localhost\r\n"


def connect(client):
    return contextlib.closing(socket.create_connection(("127.0.0.1", client.port), timeout=30))


def test_the_offer_of_another_protocol_is_ignored(client):
    """`curl --http2` and the client of the JVM offer it with a body."""
    body = b'{"instances": ["ab"]}'
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    request = HEAD + offer + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    with connect(client) as connection:
        for _ in range(2):  # in the same connection
            for part in (request[:90], request[90:-9], request[-9:]):
                connection.sendall(part)
            response = http.client.HTTPResponse(connection)
            response.begin()
            answer = {"predictions": [{"upper": "AB", "size": 2}]}
            assert (response.status, json.loads(response.read())) == (200, answer)


@pytest.mark.parametrize(("head", "chunk", "status"), [
    (HEAD + b"Content-Length: 104857600\r\n\r\n", b"[" * 2**20, 413),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n%s\r\n" % (b"[" * 2**20), 413),
    (b"GET / HTTP/1.1\r\nX: ", b"a" * 2**20, 431),
])  # fmt: skip
def test_a_request_of_100_megabytes_is_not_kept(client, head, chunk, status):
    before = memory()
    with connect(client) as connection:
        connection.sendall(head)
        # The server may close the connection before it has everything.
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(chunk)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1000).startswith(b"HTTP/1.1 %d " % status)
    assert memory() - before < 50_000_000
    assert client.predict({"instances": ["a"]})[0] == 200


def memory():
    return int(pathlib.Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def test_texts_are_logged_only_when_asked(caplog):
    caplog.set_level("DEBUG")
    for log_texts, number in ((False, 0), (True, 1)):
        with serving(EchoModel(), log_texts=log_texts) as client:
            assert client.predict({"instances": ["a secret", "fail"]})[0] == 500
        assert caplog.text.count("a secret") == number


def test_a_slow_client_and_a_slow_model_end_at_the_limit_of_time():
    slow = Slow()
    with serving(EchoModel(serving_default=slow), request_timeout=0.3) as client:
        with connect(client) as connection, connect(client) as silent:
            silent.sendall(HEAD)
            connection.sendall(HEAD + b"Content-Length: 20\r\n\r\n{")
            assert connection.recv(1000).startswith(b"HTTP/1.1 504 ")
            error = {"error": "No answer within 0.3 seconds"}
            assert client.predict({"instances": ["a"]}) == (504, error)
            slow.opened.set()
            assert client.predict({"instances": ["a"]})[0] == 200  # others are still served


def test_a_connection_without_a_request_or_a_reader_ends():
    class Long(Echo):
        def __call__(self, texts):
            return {"long": np.array([10_000_000 * b"a"], object)}

    body = b'{"instances": ["a"]}'
    with serving(EchoModel(serving_default=Long()), request_timeout=0.6) as client:
        with connect(client) as silent, connect(client) as half, connect(client) as deaf:
            half.sendall(HEAD)
            deaf.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            for _ in range(3):  # Others are answered meanwhile.
                assert client.send("GET", "/health")[0] == 200
            assert silent.recv(1) == half.recv(1) == b""
            time.sleep(1.5)
            with contextlib.suppress(ConnectionError):
                while received := deaf.recv(2**20):
                    assert b"}" not in received  # the end of the answer


def test_a_large_answer_is_refused():
    class Wider(Echo):
        def __call__(self, texts):
            return {"wide": np.zeros([len(texts["text"]), 300_000], np.float32)}

    with serving(EchoModel(serving_default=Wider())) as client:
        status, answer = client.predict({"instances": 20 * ["a"]})
        assert status == 400 and answer["error"] == (
            "An answer may have at most 5,000,000 values: send fewer texts at once. "
            "Received: texts whose answer has 6,000,000"
        )


def test_a_client_that_goes_away_is_forgotten_and_counted():
    slow = Slow()
    with serving(EchoModel(serving_default=slow)) as client:

        def is_shown(line):
            return any(line in client.send("GET", "/metrics")[1] for _ in range(3_000))

        with connect(client) as first, connect(client) as second:
            first.sendall(HEAD + b'Content-Length: 20\r\n\r\n{"instances": ["a"]}')
            assert slow.began.wait(30)
            second.sendall(HEAD + b'Content-Length: 20\r\n\r\n{"instances": ["a"]}')
            assert is_shown('waiting{model="echo",signature="serving_default",version="1"} 1.0')
        assert is_shown('requests_count{method="predict",model="echo",status="499"} 2.0')
        slow.opened.set()
        assert client.predict({"instances": ["b"]})[0] == 200
    assert slow.batches == [1, 1]  # the second was not computed


STUCK = """
import asyncio, socket, threading, uvicorn
from keras_transformer.errors import StopSignals
from keras_transformer.serving.protocol import HttpServer

async def app(scope, receive, send):
    print("asked", flush=True)
    await asyncio.to_thread(threading.Event().wait)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
with StopSignals(print):
    HttpServer(uvicorn.Config(app, lifespan="off", log_config=None)).run(sockets=[listener])
"""


def test_a_second_signal_ends_what_is_stuck():
    """asyncio would wait for the thread for minutes, and Python without an end."""
    number = signal.SIGTERM
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline())
    with process, contextlib.closing(socket.create_connection(("127.0.0.1", port))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert process.stdout.readline() == "asked\n"
        for _ in range(2):
            process.send_signal(number)
            time.sleep(0.5)  # Two that come at once are one.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        assert process.wait() == 128 + number
