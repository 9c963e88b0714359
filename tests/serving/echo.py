"""A served model without weights, and a server of it in a thread: what is asked and answered."""

import contextlib
import http.client
import json
import socket
import threading

import numpy as np

from keras_transformer.serving import ServerSettings
from keras_transformer.serving.app import Server


class Echo:
    """Answers each text with itself in capitals and its length; a text "fail" raises an error."""

    def __init__(self, *inputs):
        self.inputs = inputs or ("text",)
        self.batches = []  # the numbers of rows

    def __call__(self, texts):
        first = texts[self.inputs[0]]
        self.batches.append(len(first))
        if b"fail" in first:
            raise RuntimeError("no answer")
        upper = np.array([*[text.upper() for text in first], None], object)[:-1]
        return {"upper": upper, "size": np.array([len(text) for text in first], np.int32)}


class Slow(Echo):
    """An `Echo` whose answers wait until `opened` is set."""

    def __init__(self):
        super().__init__()
        self.opened, self.began = threading.Event(), threading.Event()

    def __call__(self, texts):
        self.began.set()
        assert self.opened.wait(60)
        return super().__call__(texts)


class EchoModel:
    """A version of a model, like `ServedModel`."""

    def __init__(self, name="echo", version=1, **signatures):
        self.name, self.version = name, version
        self.signatures = {"serving_default": Echo(), **signatures}
        self.pipeline, self.card, self.languages = None, {}, {}


@contextlib.contextmanager
def serving(*models, **settings):
    """Yields a `Client` of a server of models."""
    versions = {}
    for model in models:
        versions.setdefault(model.name, {})[model.version] = model
    server = Server(versions, ServerSettings(**{"streams": 1, **settings}))
    listener = socket.create_server(("127.0.0.1", 0))
    running = server.http_server()
    thread = threading.Thread(target=running.run, args=[[listener]], daemon=True)
    thread.start()
    try:
        yield Client(listener.getsockname()[1])
    finally:
        running.should_exit = True
        thread.join()


class Client:
    """Sends requests to a port; each has a connection of its own."""

    def __init__(self, port):
        self.port = port

    def send(self, method, path, body=None, headers=()):
        """Returns the status and the body of the answer, read as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        content = response.read()
        connection.close()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(content) if is_json else content.decode()

    def predict(self, request, model="echo"):
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        return self.send("POST", f"/v1/models/{model}:predict", body)
