"""`Server`: TensorFlow Serving's REST protocol for served models, as an ASGI application."""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from keras_transformer.errors import UserError, one_line
from keras_transformer.serving.batches import Batches
from keras_transformer.serving.models import ServedModel
from keras_transformer.serving.page import page_routes
from keras_transformer.serving.protocol import RequestError, read_request, to_answer, to_texts
from keras_transformer.serving.server_settings import ServerSettings

_LOGGER = logging.getLogger(__name__)
# TensorFlow Serving's own patterns (model_servers/http_rest_api_util.cc).
_MODEL = r"/v1/models/(?P<name>[^/:]+)(/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_GET = re.compile(_MODEL + r"(/(?P<method>metadata))?")
_POST = re.compile(_MODEL + r":(?P<method>classify|regress|predict)")
_CLIENT_LEFT = 499  # nginx's


class Server:
    """Answers requests to models: the versions of each by name.

    Attributes:
        app: The ASGI application.
    """

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
        routes = [
            Route("/v1/{path:path}", self.respond, methods=["GET", "POST"]),
            Route("/metrics", self._show_metrics),
            *page_routes(self),
        ]
        handlers: Any = {HTTPException: _explain, RequestError: _explain}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def model(self, name: str, version: int | None = None) -> ServedModel:
        """Returns a model, by default the newest; raises a `RequestError` if it is not served."""
        versions = self.models.get(name, {})
        number = max(versions, default=-1) if version is None else version
        if number not in versions:
            which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise RequestError(f"Servable not found for request: {which}", 404)
        return versions[number]

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of a function, which is called where the models compute."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def predict(self, model: ServedModel, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request of the predict API, computed together with others.

        Raises a `RequestError` if the request does not fit its signature or the limits.
        """
        name = request.get("signature_name") or "serving_default"
        if "signatures" not in vars(model):  # it is not loaded yet
            await self.run(getattr, model, "signatures")
        if name not in model.signatures:
            raise RequestError(f'Serving signature name: "{name}" not found in signature def')
        texts, key = to_texts(request, model.signatures[name].inputs), (model, name)
        longest = max((len(text) for column in texts.values() for text in column), default=0)
        if longest > (most := self.settings.max_text_bytes):
            rule = f"A text may have at most {most:,} bytes"
            raise RequestError(f"{rule}. Received: {longest:,}")
        if self.settings.log_texts:
            _LOGGER.info("%s: %s", model.name, json.dumps(request))
        if key not in self._batches:
            batches = Batches(model.signatures[name], self._threads, self.settings)
            self._waiting.labels(model.name, name).set_function(lambda: batches.num_waiting)
            self._batches[key] = batches
        return to_answer(request, await self._batches[key].answer(texts))

    async def respond(self, request: Request, compute: Callable | None = None) -> Response:
        """Answers a request, with JSON or a page, or with an error.

        `await compute(request, names)` returns the content, and writes its model into `names`.
        """
        loop, names = asyncio.get_running_loop(), {"model": "", "method": ""}
        start, status, content = loop.time(), 200, {}
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                content = await (compute or self._content)(request, names)
        except (RequestError, UserError) as error:
            status, content = getattr(error, "status", 400), {"error": str(error)}
        except TimeoutError:
            rule = f"No answer within {self.settings.request_timeout:g} seconds"
            status, content = 504, {"error": rule}
        except ClientDisconnect:
            status = _CLIENT_LEFT
        except Exception as error:
            status, content = 500, {"error": one_line(error)}
            _LOGGER.error("A request failed: %s", one_line(error))
        self._seconds.labels(**names, status=status).observe(loop.time() - start)
        if isinstance(content, str):
            return Response(content, status, media_type="text/html")
        text = json.dumps(content, ensure_ascii=False)
        return Response(text, status, media_type="application/json")

    async def _content(self, request, names):
        """Returns the content of the answer to a request; writes its model into `names`."""
        pattern = _POST if request.method == "POST" else _GET
        match = pattern.fullmatch(request.url.path)
        if match is None:
            raise RequestError(f"Malformed request: {request.method} {request.url.path}")
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
        body = read_request(await self.body(request))
        answer = asyncio.ensure_future(self.predict(model, body))
        left = asyncio.ensure_future(request.receive())  # after the body: the client has left
        try:
            await asyncio.wait([answer, left], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return answer.result()
        finally:
            answer.cancel()
            left.cancel()

    async def body(self, request: Request) -> bytes:
        """Returns the body of a request; raises a `RequestError` if it is too large."""
        most, body = self.settings.max_body_bytes, bytearray()
        if int(request.headers.get("content-length", 0)) <= most:
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    break
            else:
                return bytes(body)
        raise RequestError(f"The body of a request may have at most {most:,} bytes", 413)

    def _status(self, name, version):
        versions = self.models.get(name, {})
        if version is not None and version not in versions:
            raise RequestError(f"Could not find version {version} of model {name}", 404)
        if not versions:
            raise RequestError(f"Could not find any versions of model {name}", 404)
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        numbers = sorted(versions) if version is None else [version]
        return {"model_version_status": [{"version": str(n), **state} for n in numbers]}

    async def _show_metrics(self, request):
        text = prometheus.generate_latest(self._registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_PLAIN_0_0_4)


def _metadata(model):
    """Returns the answer to `/metadata`; it traces all signatures."""
    from tensorflow.core.framework.types_pb2 import DataType

    def tensor_info(name, dtype, shape):
        dims = [{"size": str(-1 if size is None else size), "name": ""} for size in shape]
        tensor_shape = {"dim": dims, "unknown_rank": False}
        return {"dtype": DataType.Name(dtype), "tensor_shape": tensor_shape, "name": name}

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


async def _explain(request, error):
    if isinstance(error, HTTPException):  # no route, or another method
        rule = f"Malformed request: {request.method} {request.url.path}"
        error = RequestError(rule, error.status_code)
    text = json.dumps({"error": str(error)})
    return Response(text, error.status, media_type="application/json")
