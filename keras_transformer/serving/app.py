"""`Server`: TensorFlow Serving's REST protocol for served models, as an ASGI application."""

import asyncio
import contextlib
import ipaddress
import json
import logging
import re
import urllib.parse
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import prometheus_client as prometheus
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_transformer.data.languages import LANGUAGES
from keras_transformer.errors import UserError, one_line
from keras_transformer.serving import ServerSettings, page
from keras_transformer.serving.batches import Batches
from keras_transformer.serving.models import ServedModel
from keras_transformer.serving.protocol import (
    Connection,
    HttpServer,
    RequestError,
    read_request,
    to_answer,
    to_texts,
)

_LOGGER = logging.getLogger(__name__)
# TensorFlow Serving's own patterns (model_servers/http_rest_api_util.cc), without version labels.
_MODEL = r"/v1/models/(?P<name>[^/:]+)(/versions/(?P<version>[0-9]{1,18}))?"
_CLIENT_LEFT = 499  # nginx's status


class Server:
    """Answers requests to models: the versions of each by name."""

    def __init__(self, models: Mapping[str, Mapping[int, ServedModel]], settings: ServerSettings):
        self.models, self.settings = models, settings
        self._threads = ThreadPoolExecutor(settings.streams, "model")
        for versions in models.values():
            for model in versions.values():
                model.streams = settings.streams or 1
        self._batches: dict[tuple[ServedModel, str], Batches] = {}
        self._registry = registry = prometheus.CollectorRegistry()
        labels, unit = ["model", "method", "status"], "keras_transformer"
        text = "Requests and the seconds to their answers."
        self._seconds = prometheus.Histogram("requests", text, labels, unit, registry=registry)
        labels, text = ["model", "signature", "version"], "Texts that wait to be computed."
        self._waiting = prometheus.Gauge("waiting", text, labels, unit, registry=registry)
        # Starlette's `Router` sends the answers itself, but here an answer has its time limit, and
        # is counted, before it is sent.
        self._routes: list[tuple[str, str, Callable]] = [
            ("GET", "/v1/models|/health", self._list_models),
            ("GET", _MODEL, self._show_status),
            ("GET", _MODEL + "/(?P<method>metadata)", self._show_metadata),
            ("POST", _MODEL + ":(?P<method>predict|classify|regress)", self._predict),
            ("GET", "/metrics", self._show_metrics),
            ("GET", "/", self._show_page),
            ("POST", "/page/(?P<name>[^/]+)/(?P<method>parts|pairs|attention)", self._answer_page),
        ]

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request of ASGI."""
        await (await self._respond(Request(scope, receive)))(scope, receive, send)

    def model(self, name: str, version: str | None = None) -> ServedModel:
        """Returns a model, by default the newest; raises a `RequestError` if it is not served."""
        versions = self.models.get(name, {})
        number = max(versions, default=-1) if version is None else int(version)
        if number not in versions:
            which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise RequestError(f"Servable not found for request: {which}", 404)
        return versions[number]

    def http_server(self) -> HttpServer:
        """Returns a server of the application."""
        config = uvicorn.Config(
            self.app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # `_respond` logs what goes wrong.
            access_log=False,
            timeout_graceful_shutdown=self.settings.request_timeout,  # type: ignore[arg-type]
        )
        return HttpServer(config)

    async def _run(self, function, *arguments):
        """Returns the result of a function, which is called where the models compute."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def _respond(self, request):
        """Answers with the result of a function of `_routes`, or with an error."""
        loop, names = asyncio.get_running_loop(), {"model": "", "method": ""}
        start, status = loop.time(), 200
        try:
            self._check_hosts(request)
            async with asyncio.timeout(self.settings.request_timeout):
                function, parts = self._find(request)
                body = await self._body(request)
                if "method" in parts and parts["name"] in self.models:
                    names = {"model": parts["name"], "method": parts["method"]}
                content = await _unless_left(request, function(body, **parts))
        except (RequestError, UserError) as error:
            status, content = getattr(error, "status", 400), {"error": str(error)}
        except TimeoutError:
            rule = f"No answer within {self.settings.request_timeout:g} seconds"
            status, content = 504, {"error": rule}
        except ClientDisconnect:
            status, content = _CLIENT_LEFT, {}
        except asyncio.CancelledError:  # This is the second Ctrl-C.
            status, content = 503, {"error": "The server has been stopped"}
        except Exception as error:
            status, content = 500, {"error": one_line(error)}
            _LOGGER.error("A request failed: %s", one_line(error))
        self._seconds.labels(**names, status=status).observe(loop.time() - start)
        return content if isinstance(content, Response) else _to_response(content, status)

    def _find(self, request):
        """Returns the function that answers a request, and the named parts of its path."""
        # `request.url` would end the path at %3F.
        method, path = request.method.replace("HEAD", "GET"), request.scope["path"]
        routes = [
            (m, match, f)
            for m, pattern, f in self._routes
            if (match := re.fullmatch(pattern, path))
        ]
        for allowed, match, function in routes:
            if method == allowed:
                return function, match.groupdict()
        status = 405 if routes else 404
        if path.startswith("/v1/models/") and method in ("GET", "POST"):
            status = 400  # TensorFlow Serving's answer
        raise RequestError(f"Malformed request: {request.method} {path}", status)

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
            rule = "A page of another site may not ask this server; --allowed-host NAME allows a "
            rule += "Host and its Origin"
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

    async def _list_models(self, body):
        return {"models": [{"name": name, **self._status(name)} for name in self.models]}

    async def _show_status(self, body, name, version):
        return self._status(name, version)

    async def _show_metadata(self, body, name, version, method):
        return await self._run(self.model(name, version).metadata)

    def _status(self, name, version=None):
        versions = self.models.get(name, {})
        numbers = sorted(versions) if version is None else [int(version)]
        if not versions or numbers[0] not in versions:
            which = "any versions" if version is None else f"version {version}"
            raise RequestError(f"Could not find {which} of model {name}", 404)
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return {"model_version_status": [{"version": str(n), **state} for n in numbers]}

    async def _predict(self, body, name, version, method):
        """Returns the answer to a request of the predict API, computed together with others."""
        model = self.model(name, version)
        if method != "predict":
            raise RequestError(f"This server answers predict. Received: {method}", 501)
        content = read_request(body)
        signature_name = content.get("signature_name") or "serving_default"
        if not hasattr(model, "signatures"):
            await self._run(model.load)
        if (signature := model.signatures.get(signature_name)) is None:
            rule = f'Serving signature name: "{signature_name}" not found in signature def'
            raise RequestError(rule)
        texts = to_texts(content, signature.inputs, self.settings.max_text_bytes)
        if self.settings.log_texts:
            _LOGGER.info("%s: %s", name, json.dumps(content))
        key = model, signature_name
        if key not in self._batches:
            self._batches[key] = batches = Batches(signature, self._threads, self.settings)
            waiting = self._waiting.labels(name, signature_name, model.version)
            waiting.set_function(lambda: batches.num_waiting)
        outputs = await self._batches[key].answer(texts)
        # To write a large answer would hold up other requests.
        return await asyncio.to_thread(lambda: _to_response(to_answer(content, outputs)))

    async def _show_page(self, body):
        return await asyncio.to_thread(page.model_page, list(map(self.model, self.models)))

    async def _answer_page(self, body, name, method):
        model, inputs = self.model(name), ("text",)
        if method != "parts":
            inputs = ("text", "answer", *(LANGUAGES if model.languages else ()))
        if method == "attention":  # The browser sends a form, and shows the answer as a page.
            content = {"inputs": urllib.parse.parse_qs(body.decode("latin-1"))}
        else:
            content = read_request(body)
        columns = to_texts(content, inputs, self.settings.max_text_bytes).values()
        texts = [[text.decode("utf-8", "replace") for text in column] for column in columns]
        return await self._run(getattr(page, method), model, *texts)

    async def _show_metrics(self, body):
        text = prometheus.generate_latest(self._registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_PLAIN_0_0_4)


async def _unless_left(request, coroutine):
    """Returns the result of a coroutine; ends it if the client leaves."""
    answer = asyncio.ensure_future(coroutine)
    left = asyncio.ensure_future(request.receive())  # This comes after the body.
    try:
        await asyncio.wait([answer, left], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        left.cancel()


def _to_response(content, status=200):
    # A request may have halves of surrogate pairs, which UTF-8 cannot encode.
    text = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(text, status, media_type="application/json")
