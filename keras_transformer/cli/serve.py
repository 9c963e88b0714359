"""`keras-transformer serve`: answers HTTP requests with models."""

import contextlib
import dataclasses
import math
import socket
import time

from keras_transformer.cli.arguments import add_setting, load_backend_in_streams
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError
from keras_transformer.serving.server_settings import ServerSettings
from keras_transformer.settings.setting import declarations


def define_options(parser):
    text = "model directory, SavedModel, or folder with a SavedModel in a folder of a number for "
    text += "each version; the default name is that of the folder"
    parser.add_argument("model", metavar="[NAME=]MODEL", nargs="+", help=text)
    for option in declarations(ServerSettings).values():
        add_setting(parser, option)


def run(arguments):
    from keras_transformer.serving.models import find_models

    # Errors in the arguments come before TensorFlow is loaded.
    models = find_models(arguments.model)
    given = {name: getattr(arguments, name) for name in declarations(ServerSettings)}
    settings = ServerSettings(**{k: value for k, value in given.items() if value is not None})
    newest = {name: versions[max(versions)] for name, versions in models.items()}
    listener = _bind(settings.host, settings.port)
    start = time.monotonic()
    streams = load_backend_in_streams(settings.streams)
    import keras
    import uvicorn

    from keras_transformer.serving.app import Server

    if (backend := keras.backend.backend()) != "tensorflow":
        rule = "The server needs the TensorFlow backend (KERAS_BACKEND=tensorflow)"
        raise UserError(f"{rule}. Received: {backend}")
    for name, model in newest.items():
        say(f"loading {name} from {str(model.path)!r} ...")
        model.warm_up()
    server = Server(models, dataclasses.replace(settings, streams=streams))
    listener.listen()  # connections wait until uvicorn accepts them
    address = f"http://{settings.host}:{listener.getsockname()[1]}"
    say(f"Ready after {time.monotonic() - start:.0f} s. Open {address}/ in a browser, or run")
    request = """'{"instances": ["He wants to sell three lamps."]}'"""
    say(f"  curl {address}/v1/models/{next(iter(models))}:predict -d {request}")
    say("Ctrl-C ends the server.")
    config = uvicorn.Config(server.app, log_config=None, access_log=False, ws="none")
    config.timeout_graceful_shutdown = math.ceil(settings.request_timeout)
    # uvicorn waits for the answers that are due, and then sends itself the signal again.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    say("stopped")


def _bind(host, port):
    """Returns a socket with an address; connections to it are refused until it listens."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # asyncio sends small packets at once only where the protocol is written out.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        rule = f"The server cannot have this address ({reason}): choose another --port or --host"
        raise UserError(f"{rule}. Received: {host}:{port}") from error
    return listener
