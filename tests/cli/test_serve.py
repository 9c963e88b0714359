"""`serve` reports mistakes before TensorFlow is loaded; as a process, it answers until a signal."""

import asyncio
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

from keras_transformer.cli.serve import _bind


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


def test_no_answer_waits_for_the_packet_before_it():
    asked = {}

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            connection = transport.get_extra_info("socket")
            asked["nodelay"] = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            transport.close()

    async def connect(listener):
        server = await asyncio.get_running_loop().create_server(Protocol, sock=listener)
        async with server:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await reader.read()
            writer.close()

    with _bind("127.0.0.1", 0) as listener:
        listener.listen()
        asyncio.run(connect(listener))
    assert asked["nodelay"]


@pytest.mark.slow
@pytest.mark.tensorflow_only("it serves signatures of TensorFlow")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_what_is_running(
    number, kept_translator_directory, kept_parser_directory
):
    models = [f"en-de={kept_translator_directory}", f"parser={kept_parser_directory}"]
    command = [sys.executable, "-m", "keras_transformer.cli", "serve", *models, "--port", "0"]
    command += ["--request-timeout", "600"]  # for a busy machine
    # A shell ignores SIGINT in its background jobs.
    default = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=default)
    lines = [next(process.stderr) for _ in range(5)]
    assert lines[0].startswith("loading en-de from '/")
    [port] = re.findall(r"Open http://127.0.0.1:(\d+)/ in a browser", "".join(lines))
    assert f"curl http://127.0.0.1:{port}/v1/models/en-de:predict -d '" in lines[3]

    def ask(method, path, texts=()):
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=600)
        connection.request(method, f"/v1/models/{path}", json.dumps({"instances": texts}))
        return connection

    def answer(connection):
        with contextlib.closing(connection):
            return json.load(connection.getresponse())

    trees = answer(ask("POST", "parser:predict", ["a dog runs"]))["predictions"]
    assert trees[0]["tree"].count("(XX") == 3
    running = [ask("POST", "en-de:predict", ["a dog"] * 300) for _ in range(3)]
    answer(ask("GET", "en-de"))  # now the server has read them
    os.kill(process.pid, number)
    assert [len(answer(connection)["predictions"]) for connection in running] == [300] * 3
    assert process.wait(600) == 0
    assert process.stderr.read() == "stopped\n"
    process.stderr.close()
