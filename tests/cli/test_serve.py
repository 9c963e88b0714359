"""`serve` reports mistakes before TensorFlow is loaded; as a process, it answers until a signal."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest


@pytest.fixture
def no_backend(monkeypatch):
    def load(streams):
        raise AssertionError("TensorFlow is loaded before the error")

    monkeypatch.setattr("keras_transformer.cli.serve.load_backend_in_streams", load)


def test_mistakes(refuse, no_backend, kept_translator_directory, tmp_path):
    model = kept_translator_directory
    line = refuse("serve", tmp_path / "missing")
    assert line.endswith(f"error: Model directory not found: '{tmp_path}/missing'.")
    line = refuse("serve", model, "--max-batch-size", 0)
    assert "--max-batch-size: expected a whole number of at least 1. Received: '0'" in line
    line = refuse("serve", model, "--port", 70000)
    assert "--port: expected a port from 0 to 65535. Received: '70000'" in line
    assert "cannot have this address" in refuse("serve", model, "--host", "256.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refuse("serve", model, "--port", port)
    assert line.endswith(f"(Address already in use): choose another --port or --host. "
                         f"Received: 127.0.0.1:{port}")  # fmt: skip


@pytest.mark.slow
@pytest.mark.tensorflow_only("it serves signatures of TensorFlow")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_what_is_running(
    number, kept_translator_directory, kept_parser_directory
):
    models = [f"en-de={kept_translator_directory}", f"parser={kept_parser_directory}"]
    command = [sys.executable, "-m", "keras_transformer.cli", "serve", *models, "--port", "0"]
    # A shell ignores SIGINT in its background jobs.
    default = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=default)
    lines = [next(process.stderr) for _ in range(5)]
    assert lines[0].startswith("loading en-de from '/")
    [port] = re.findall(r"Open http://127.0.0.1:(\d+)/ in a browser", "".join(lines))
    assert f"curl http://127.0.0.1:{port}/v1/models/en-de:predict -d '" in lines[3]
    answers = []

    def ask(model, texts):
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        body = json.dumps({"instances": texts})
        connection.request("POST", f"/v1/models/{model}:predict", body)
        answers.append(json.load(connection.getresponse())["predictions"])

    ask("parser", ["a dog runs"])
    assert answers.pop()[0]["tree"].count("(XX") == 3
    asking = [threading.Thread(target=ask, args=["en-de", ["a dog"] * 500]) for _ in range(2)]
    for thread in asking:
        thread.start()
    while not answers:
        ask("en-de", ["a"])
        os.kill(process.pid, number)
        break
    for thread in asking:
        thread.join()
    assert sorted(map(len, answers)) == [1, 500, 500]
    assert process.wait(60) == 0
    assert process.stderr.read() == "stopped\n"
    process.stderr.close()
