"""`Server`: TensorFlow Serving's REST protocol for served models, as an ASGI application."""

import asyncio
import contextlib
import ipaddress
import json
import logging
import re
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import prometheus_client as prometheus
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_transformer.errors import UserError, one_line
from keras_transformer.serving.batches import Batches
from keras_transformer.serving.connection import Connection, HttpServer
from keras_transformer.serving.models import ServedModel
from keras_transformer.serving.page import page_routes
from keras_transformer.serving.protocol import RequestError, read_request, to_answer, to_texts
from keras_transformer.serving.server_settings import ServerSettings

_LOGGER = logging.getLogger(__name__)
# TensorFlow Serving's own patterns (model_servers/http_rest_api_util.cc).
_MODEL = r"/v1/models/(?P<name>[^/:]+)"
_MODEL += r"(/versions/(?P<version>[0-9]{1,18})|/labels/(?P<label>[^/:]+))?"
_GET = re.compile(_MODEL + r"(/(?P<method>metadata))?")
_POST = re.compile(_MODEL + r":(?P<method>classify|regress|predict)")
_CLIENT_LEFT = 499  # nginx's
_FEW_VALUES = 10_000  # To write more in an answer would hold up other requests.


class Server:
    """Answers requests to models: the versions of each by name."""

    def __init__(self, models: Mapping[str, Mapping[int, ServedModel]], settings: ServerSettings):
        self.models, self.settings = models, settings
        self._threads = ThreadPoolExecutor(settings.streams, "model")
        self._batches: dict[tuple[ServedModel, str], Batches] = {}
        self._registry = registry = prometheus.CollectorRegistry()
        labels, unit = ["model", "method", "status"], "keras_transformer"
        text = "Requests and the seconds to their answers."
        self._seconds = prometheus.Histogram("requests", text, labels, unit, registry=registry)
        labels, text = ["model", "signature"], "Texts that wait to be computed."
        self._waiting = prometheus.Gauge("waiting", text, labels, unit, registry=registry)
        versions = dict.fromkeys(["GET", "POST"], self._answer)
        metrics = {"GET": self._show_metrics}
        # Functions by method, by the pattern of the path. Starlette's `Router` sends the answers
        # itself, but here an answer has its time limit, and is counted, before it is sent.
        self._routes = {"/v1/models|/health": {"GET": self._list_models}, "/v1/.*": versions}
        self._routes |= {"/metrics": metrics, **page_routes(self)}

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request of ASGI."""
        await (await self._respond(Request(scope, receive)))(scope, receive, send)

    def model(self, name: str, version: int | None = None) -> ServedModel:
        """Returns a model, by default the newest; raises a `RequestError` if it is not served."""
        versions = self.models.get(name, {})
        number = max(versions, default=-1) if version is None else version
        if number not in versions:
            which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise RequestError(f"Servable not found for request: {which}", 404)
        return versions[number]

    def http_server(self) -> HttpServer:
        """Returns a server of the application."""
        options: dict[str, Any] = {"http": Connection, "lifespan": "off", "ws": "none"}
        options |= {"timeout_graceful_shutdown": self.settings.request_timeout}
        options |= {"interface": "asgi3", "log_config": None, "access_log": False}
        options["log_level"] = "critical"  # `_respond` logs what goes wrong.
        return HttpServer(uvicorn.Config(self.app, **options))

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of a function, which is called where the models compute."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def _respond(self, request):
        """Answers with the result of a function of `_routes`, or with an error.

        The function writes its model and method into `names`.
        """
        loop, names = asyncio.get_running_loop(), {"model": "", "method": ""}
        start, status = loop.time(), 200
        try:
            self._check_hosts(request)
            async with asyncio.timeout(self.settings.request_timeout):
                compute, body = self._find(request), await self._body(request)
                content = await _unless_left(request, compute(request, body, names))
        except (RequestError, UserError) as error:
            status, content = getattr(error, "status", 400), {"error": str(error)}
        except TimeoutError:
            rule = f"No answer within {self.settings.request_timeout:g} seconds"
            status, content = 504, {"error": rule}
        except ClientDisconnect:
            status, content = _CLIENT_LEFT, {}
        except asyncio.CancelledError:  # a second Ctrl-C
            status, content = 503, {"error": "The server has been stopped"}
        except Exception as error:
            status, content = 500, {"error": one_line(error)}
            _LOGGER.error("A request failed: %s", one_line(error))
        self._seconds.labels(**names, status=status).observe(loop.time() - start)
        return content if isinstance(content, Response) else _to_response(content, status)

    def _find(self, request):
        method, path = request.method.replace("HEAD", "GET"), request.scope["path"]
        found = [f for pattern, f in self._routes.items() if re.fullmatch(pattern, path)]
        if not found or method not in found[0]:
            status = 405 if found else 404
            raise RequestError(f"Malformed request: {request.method} {path}", status)
        return found[0][method]

    def _check_hosts(self, request):
        # Starlette's `TrustedHostMiddleware` answers 400 in plain text, and looks at `Host` alone.
        headers, address = request.headers, request.scope["server"][0]
        hosts, given = headers.getlist("host"), self.settings.allowed_hosts or ()
        if len(hosts) > 1 or (not hosts and request.scope["http_version"] == "1.1"):
            raise RequestError(f"A request must have one Host. Received: {len(hosts)}")
        if not given and not ipaddress.ip_address(address).is_loopback:
            return
        allowed = {"localhost", "127.0.0.1", "[::1]", address, self.settings.host, *given}
        received, sites = [*hosts, *headers.getlist("origin")], headers.getlist("sec-fetch-site")
        names = {re.sub(r"^https?://|:\d+$", "", text.lower()) for text in received}
        if names - {*map(str.lower, allowed)} or "cross-site" in sites:
            rule = "A page of another site may not ask this server; --allowed-host allows a Host"
            raise RequestError(f"{rule}. Received: {', '.join(received + sites)}", 403)

    async def _body(self, request):
        # Starlette's limit of a body is not for what it unpacks to.
        most, body = self.settings.max_body_bytes, bytearray()
        too_large = RequestError(f"The body of a request may have at most {most:,} bytes", 413)
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large
        coding = request.headers.get("content-encoding", "identity").lower()
        if not body or coding == "identity":
            return bytes(body)
        if coding not in ("gzip", "x-gzip"):
            raise RequestError(f"A body may be packed by gzip. Received: {coding}", 415)
        unpacker = zlib.decompressobj(zlib.MAX_WBITS + 16)  # 16 means gzip
        with contextlib.suppress(zlib.error):
            body = unpacker.decompress(body, most + 1)
        if len(body) > most:
            raise too_large
        if not unpacker.eof or unpacker.unused_data:
            raise RequestError("The body is not one complete gzip file")
        return body

    async def _list_models(self, request, body, names):
        return {"models": [{"name": name, **self._status(name, None)} for name in self.models]}

    async def _answer(self, request, body, names):
        path = request.scope["path"]  # `request.url` would end it at %3F
        match = (_POST if request.method == "POST" else _GET).fullmatch(path)
        if match is None:
            raise RequestError(f"Malformed request: {request.method} {path}")
        name, label, method = match["name"], match["label"], match["method"]
        if label is not None:
            raise RequestError(f"Unrecognized servable version label: {label}")
        version = None if match["version"] is None else int(match["version"])
        if method is None:
            return self._status(name, version)
        model = self.model(name, version)
        names |= {"model": name, "method": method}
        if method == "metadata":
            return await self.run(_metadata, model)
        if method != "predict":
            raise RequestError(f"This server answers predict. Received: {method}", 501)
        return await self._predict(model, read_request(body))

    def _status(self, name, version):
        versions = self.models.get(name, {})
        numbers = sorted(versions) if version is None else [version]
        if not versions or numbers[0] not in versions:
            which = "any versions" if version is None else f"version {version}"
            raise RequestError(f"Could not find {which} of model {name}", 404)
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return {"model_version_status": [{"version": str(n), **state} for n in numbers]}

    async def _predict(self, model, request):
        """Returns the answer to a request of the predict API, computed together with others."""
        name = request.get("signature_name") or "serving_default"
        if not hasattr(model, "signatures"):
            await self.run(model.load)
        if name not in model.signatures:
            raise RequestError(f'Serving signature name: "{name}" not found in signature def')
        key, names = (model, name), model.signatures[name].inputs
        texts = to_texts(request, names, self.settings.max_text_bytes)
        if self.settings.log_texts:
            _LOGGER.info("%s: %s", model.name, json.dumps(request))
        if key not in self._batches:
            batches = Batches(model.signatures[name], self._threads, self.settings)
            self._waiting.labels(model.name, name).set_function(lambda: batches.num_waiting)
            self._batches[key] = batches
        outputs = await self._batches[key].answer(texts)
        if sum(array.size for array in outputs.values()) < _FEW_VALUES:
            return to_answer(request, outputs)
        return await asyncio.to_thread(lambda: _to_response(to_answer(request, outputs)))

    async def _show_metrics(self, request, body, names):
        text = prometheus.generate_latest(self._registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_PLAIN_0_0_4)


async def _unless_left(request, coroutine):
    """Returns the result of a coroutine; ends it if the client leaves."""
    answer = asyncio.ensure_future(coroutine)
    left = asyncio.ensure_future(request.receive())  # what comes after the body
    try:
        await asyncio.wait([answer, left], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        left.cancel()


def _metadata(model):
    """Returns the answer to `/metadata`; it traces all signatures."""
    from tensorflow.core.framework.types_pb2 import DataType

    def tensor_info(name, dtype, shape):
        dims = [{"size": str(-1 if size is None else size), "name": ""} for size in shape]
        tensor_shape = {"dim": dims, "unknown_rank": False}
        return {"dtype": DataType.Name(dtype), "tensor_shape": tensor_shape, "name": name}

    model.load()
    signatures = {}
    for name, signature in model.signatures.items():
        outputs = {n: (s.dtype.as_datatype_enum, s.shape) for n, s in signature.outputs.items()}
        signatures[name] = {
            "inputs": {n: tensor_info(n, DataType.DT_STRING, [None]) for n in signature.inputs},
            "outputs": {n: tensor_info(n, *spec) for n, spec in outputs.items()},
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
    spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
    return {
        "model_spec": spec,
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _to_response(content, status=200):
    # A request may have halves of surrogate pairs, which UTF-8 cannot encode.
    text = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(text, status, media_type="application/json")
