"""`keras-transformer serve`: answers HTTP requests with models."""

import contextlib
import dataclasses
import json
import os
import shlex
import socket
import time

from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.options import add_option, options_of
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError
from keras_transformer.layouts import VALID_FILES
from keras_transformer.serving import ServerSettings


def define_options(parser):
    text = "model directory, SavedModel, or folder with a SavedModel in a folder of a number for "
    text += "each version; the default name is that of the folder"
    parser.add_argument("model", metavar="[NAME=]MODEL", nargs="+", help=text)
    for option in _options().values():
        add_option(parser, option)


def _options():
    """Returns the options of `ServerSettings` by field."""
    options = options_of(ServerSettings)
    option = dataclasses.replace(options["allowed_hosts"], name="allowed_host")
    return {**options, "allowed_hosts": option}


def run(arguments):
    from keras_transformer.serving.models import find_models

    # Errors in the arguments come before TensorFlow is loaded.
    models = find_models(arguments.model)
    given = {name: getattr(arguments, option.name) for name, option in _options().items()}
    settings = ServerSettings(**{k: value for k, value in given.items() if value is not None})
    listener = _listen(settings.host, settings.port)
    start = time.monotonic()
    streams = load_backend_in_streams(settings.streams)
    import keras

    from keras_transformer.serving.app import Server

    if (backend := keras.backend.backend()) != "tensorflow":
        rule = "The server needs the TensorFlow backend (KERAS_BACKEND=tensorflow)"
        raise UserError(f"{rule}. Received: {backend}")
    server = Server(models, dataclasses.replace(settings, streams=streams))
    for name in models:
        say(f"loading {name} from {str(server.model(name).path)!r} ...")
        server.model(name).warm_up()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}"
    say(f"Ready after {time.monotonic() - start:.0f} s. Open {address}/ in a browser, or run")
    name = next(iter(models))
    request = json.dumps({"instances": [_example(server.model(name).path)]}, ensure_ascii=False)
    say(f"  curl {address}/v1/models/{name}:predict -d {shlex.quote(request)}")
    say("Ctrl-C ends the server.")
    http_server = server.http_server()
    # It waits for the answers that are due, and then sends itself the signal again.
    with contextlib.suppress(KeyboardInterrupt):
        http_server.run(sockets=[listener])
    say("stopped")
    os._exit(http_server.exit_status)  # Python would wait for threads that still compute.


def _example(directory):
    """Returns the first validation text that was held out, or a text that the quickstart knows."""
    with contextlib.suppress(OSError, ValueError), open(directory / VALID_FILES[0], "rb") as file:
        return file.readline(1_000).decode("utf-8").strip()
    return "He wants to sell three lamps."


def _listen(host, port):
    """Returns a socket that listens at an address; connections wait until the models are loaded."""
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address, family=family)
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0]
        rule = f"The server cannot have this address ({reason}): choose another --port or --host"
        raise UserError(f"{rule}. Received: {host}:{port}") from error
