"""`serve` reports mistakes before TensorFlow is loaded; as a process, it answers until a signal."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest


@pytest.fixture
def no_backend(monkeypatch):
    def load(streams):
        raise AssertionError("TensorFlow is loaded before the error")

    monkeypatch.setattr("keras_transformer.cli.export.load_backend_in_streams", load)


def test_mistakes(refuse, no_backend, kept_translator_directory, tmp_path):
    model = kept_translator_directory
    line = refuse("serve", tmp_path / "missing")
    assert line.endswith(f"error: Model directory not found: '{tmp_path}/missing'.")
    line = refuse("serve", model, "--port", 70000)
    assert "--port: expected a port from 0 to 65535. Received: '70000'" in line
    assert "cannot have this address" in refuse("serve", model, "--host", "256.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refuse("serve", model, "--port", port)
    assert line.endswith(f"(Address already in use): choose another --port or --host. "
                         f"Received: 127.0.0.1:{port}")  # fmt: skip


@contextlib.contextmanager
def serve(*models):
    """Yields a process of `serve`, its first lines, and a function that sends it a request."""
    command = [sys.executable, "-m", "keras_transformer.cli", "serve", *models, "--port", "0"]
    command += ["--request-timeout", "600"]  # for a busy machine
    # A shell ignores SIGINT in its background jobs.
    default = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=default)
    lines = [next(process.stderr)]
    while not lines[-1].startswith("Ctrl-C"):
        lines.append(next(process.stderr))
    [port] = re.findall(r"Open http://127.0.0.1:(\d+)/ in a browser", "".join(lines))
    assert f"curl http://127.0.0.1:{port}/v1/models/en-de:predict -d '" in lines[-2]

    def ask(method, path, texts=()):
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=600)
        connection.request(method, f"/v1/models/{path}", json.dumps({"instances": texts}))
        return connection

    yield process, lines, ask
    process.stderr.close()


def answer(connection):
    with contextlib.closing(connection):
        return json.load(connection.getresponse())


@pytest.mark.slow
@pytest.mark.tensorflow_only("it serves signatures of TensorFlow")
def test_a_signal_finishes_what_is_running(kept_translator_directory):
    with serve(f"en-de={kept_translator_directory}") as (process, lines, ask):
        assert lines[0].startswith("loading en-de from '/")
        running = [ask("POST", "en-de:predict", ["a dog"] * 300) for _ in range(3)]
        answer(ask("GET", "en-de"))  # now the server has read them
        os.kill(process.pid, signal.SIGINT)
        assert [len(answer(connection)["predictions"]) for connection in running] == [300] * 3
        assert process.wait(600) == 0
        assert process.stderr.read() == "stopped\n"
