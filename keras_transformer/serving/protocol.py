"""Connections; requests and answers of TensorFlow Serving's predict API in JSON, for texts.

The connections and the server are uvicorn's, with limits and an end that they do not have.
Reference: https://github.com/tensorflow/serving/blob/master/tensorflow_serving/g3doc/api_rest.md;
the texts of errors are those of tensorflow_serving/util/json_tensor.cc where it has the same ones.
"""

import base64
import json
import math
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httptools
import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BYTES = 2**20  # in the head of a request
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"
_MOST_VALUES = 5_000_000  # in an answer
_TYPES = {bool: "Bool", dict: "Object", list: "Array", type(None): "Null"}


class Connection(HttpToolsProtocol):
    """Ends if the head of a request is long or late, or if the client does not read its answer.

    uvicorn's time limit is for the pause between requests. With h11 it limits heads, but is slower.
    """

    def connection_made(self, transport):
        super().connection_made(transport)
        # asyncio sets it only where the protocol of the socket is written out.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._num_bytes = 0
        self._end_unless_after(self)

    def _end_unless_after(self, cycle):
        if self.cycle is cycle:  # There was no other request since the last look.
            self.transport.abort()
            return
        # Within half of this time the server answers a request.
        seconds = 2 * (self.config.timeout_graceful_shutdown or 0)
        self.loop.call_later(seconds, self._end_unless_after, self.cycle)

    def data_received(self, data):
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser skips the body of a request that offers HTTP/2, so it reads the request
            # again without the offer.
            # CONNECT is an offer too; it gets the error of another method that is not served.
            method = self.parser.get_method().replace(b"CONNECT", b"TRACE")
            headers = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            head = [b"%s %s HTTP/1.1" % (method, self.url), *headers, b"", b""]
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(b"\r\n".join(head) + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        is_in_head = self.cycle is None or self.cycle.response_complete
        self._num_bytes = self._num_bytes + len(data) if is_in_head else 0
        if self._num_bytes > _MOST_BYTES:
            self.transport.write(_TOO_LONG)
            self.transport.close()

    def on_headers_complete(self):
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self):
        if not self.parser.should_upgrade():
            super().on_message_complete()


class HttpServer(uvicorn.Server):
    """Ends the process a second after a second signal; `exit_status` is the status for it."""

    exit_status = 0

    def handle_exit(self, sig, frame):
        if self.should_exit:  # uvicorn looks for a second Ctrl-C only, and waits for threads.
            self.force_exit, self.exit_status = True, 128 + sig
            end = threading.Timer(1.0, os._exit, [self.exit_status])
            end.daemon = True
            end.start()
        super().handle_exit(sig, frame)


class RequestError(Exception):
    """A request that gets an error as its answer, with an HTTP status."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def read_request(body: bytes) -> dict[str, Any]:
    """Returns the object in a body; raises a `RequestError` if it is no request to `predict`."""
    try:
        # Invalid UTF-8 reaches the model as it is; our models read it as U+FFFD.
        request = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        reason = error if body else "The document is empty"
        raise RequestError(f"JSON Parse error: {reason}") from error
    if not isinstance(request, dict):
        raise RequestError(f"{_shown(request)} Is not object")
    if not isinstance(request.get("signature_name", ""), str):
        rule = "not formatted correctly. 'signature_name' key must be a string value."
        raise RequestError(f"{_shown(request)} {rule}")
    if "instances" in request and "inputs" in request:
        rule = "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        raise RequestError(f"{_shown(request)} {rule}")
    if "instances" not in request and "inputs" not in request:
        raise RequestError("Missing 'inputs' or 'instances' key")
    return request


def to_texts(
    request: Mapping[str, Any], names: Sequence[str], most_bytes: float = math.inf
) -> dict[str, list[bytes]]:
    """Returns the texts of each named input, as many of each; raises a `RequestError`."""
    is_rows = "instances" in request
    values = request["instances" if is_rows else "inputs"]
    if is_rows and not (values and isinstance(values, list)):
        rule = "Expecting 'instances' to be an list/array"
        if values == []:
            rule = "No values in 'instances' array"
        raise RequestError(f"{_shown(request)} {rule}")
    have_names = _has_names(values[0] if is_rows else values)
    if not have_names and len(names) > 1:
        rule = "is a plain list, but expecting named values as multiple input tensors required"
        raise RequestError(f"{'instances' if is_rows else 'inputs'} {rule}: {','.join(names)}")
    for number, row in enumerate(values if is_rows else ()):
        if _has_names(row) != have_names:
            kinds = "object but got list" if have_names else "value/list but got object"
            raise RequestError(f"Expecting {kinds} at item {number} of input list")
        if have_names and row.keys() != set(names):
            where = f"Failed to process element: {number} of 'instances' list"
            raise RequestError(f"{where}. {_shown(row)} keys must be equal to: {','.join(names)}")
    if not have_names:
        values = dict.fromkeys(names, values)
    elif is_rows:
        values = {name: [row[name] for row in values] for name in names}
    columns: dict[str, list[bytes]] = {}
    for name in names:
        if name not in values:
            raise RequestError(f"Missing named input: {name} in 'inputs' object.")
        if not isinstance(values[name], list):
            raise RequestError(f"{_shown(values[name])} is not a list of strings")
        columns[name] = [_to_text(value) for value in values[name]]
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise RequestError(f"All inputs must have the same number of strings. Received: {sizes}")
    longest = max((len(text) for column in columns.values() for text in column), default=0)
    if longest > most_bytes:
        raise RequestError(f"A text may have at most {most_bytes:,} bytes. Received: {longest:,}")
    return columns


def to_answer(request: Mapping[str, Any], outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns outputs with a row for each text, in rows or columns as the request has its texts.

    Raises a `RequestError` if they would take much memory.
    """
    num_values = sum(array.size for array in outputs.values())
    if num_values > _MOST_VALUES:
        rule = f"An answer may have at most {_MOST_VALUES:,} values: send fewer texts at once"
        raise RequestError(f"{rule}. Received: texts whose answer has {num_values:,}")
    columns: dict[str, Any] = {}
    for name, array in outputs.items():
        if array.dtype == object:  # These are strings.
            texts = [text.decode("utf-8", "replace") for text in array.flat]
            array = np.array([*texts, None])[:-1].reshape(array.shape)
        elif array.dtype.kind == "f":
            # A float32 gets the shortest digits that give the same number. Row by row, it takes
            # little memory.
            rows = [row.astype(str).astype(float) for row in array]
            array = np.array(rows).reshape(array.shape)
        columns[name] = array.tolist()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    key, answer = ("outputs", columns) if "inputs" in request else ("predictions", rows)
    return {key: next(iter(columns.values())) if len(columns) == 1 else answer}


def _to_text(value):
    try:
        if isinstance(value, dict) and not _has_names(value):
            return base64.b64decode(value["b64"], validate=True)
        if isinstance(value, str):
            return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        rule = "The surrogate pair in string is invalid."
        raise RequestError(f"JSON Parse error: {rule}") from error
    except ValueError as error:
        raise RequestError("Unable to base64 decode") from error
    kind = _TYPES.get(type(value), "Number")
    raise RequestError(f"{_shown(value)} Type: {kind} is not of expected type: string")


def _has_names(value):
    """Returns whether a value is an object of named inputs, and not a text in base64."""
    if not isinstance(value, dict):
        return False
    return [*value] != ["b64"] or not isinstance(value["b64"], str)


def _shown(value):
    text = json.dumps(value)
    return f"JSON Value: {text if len(text) <= 256 else text[:256] + '...'}"
