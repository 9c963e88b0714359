"""`export` and `serve`: models for other programs."""

import contextlib
import dataclasses
import json
import os
import shlex
import socket
import time
import urllib.parse
from typing import Annotated

from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    GLOSSARY_OPTIONS,
    SEARCH_OPTIONS,
    add_constraint_options,
    add_engine_option,
    add_glossary_options,
    add_model_option,
    add_option,
    add_options,
    add_quantize_option,
    add_search_options,
    add_shortlist_option,
    choose_search,
    is_given,
    options_of,
    read_glossary,
    use_shortlist,
)
from keras_transformer.cli.backend import load_backend, load_backend_in_streams
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError
from keras_transformer.export.formats import FORMATS, check_export_directory
from keras_transformer.layouts import VALID_FILES
from keras_transformer.serving import ServerSettings
from keras_transformer.settings.base import Metavar

_NAMES = {"dtype": "precision", "num_streams": "streams", "quantization": "quantize"}
_SEARCH_OPTIONS = (*SEARCH_OPTIONS, "--n-best", "--shortlist", *CONSTRAINT_OPTIONS,
                   *GLOSSARY_OPTIONS)  # fmt: skip


def export_options(parser):
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    add_options(files, {"--output DIR": "folder of the export"}, required=True)
    text = f"one of {', '.join(FORMATS)}"
    add_options(files, {"--format NAME=saved_model": text}, choices=FORMATS)
    for option, names in _options_of_formats():
        text = f"with --format {' or '.join(names)}: {option.text}"
        # Formats may allow different values of an option; `run_export` checks them.
        kind = option.type if len(names) == 1 else Annotated[str, Metavar("TYPE")]
        add_option(files, dataclasses.replace(option, text=text, type=kind))
    add_search_options(parser)
    add_shortlist_option(parser)
    add_glossary_options(parser)
    add_constraint_options(parser)


def run_export(arguments):
    chosen = FORMATS[arguments.format]
    allowed = {option.flag: names for option, names in _options_of_formats()}
    searching = [each.name for each in FORMATS.values() if each.includes_search]
    for flag, names in (allowed | dict.fromkeys(_SEARCH_OPTIONS, searching)).items():
        if is_given(arguments, flag) and chosen.name not in names:
            rule = f"{flag} is for --format {' or '.join(names)}"
            raise UserError(f"{rule}. Received: format={chosen.name!r}")
    options = {}
    for name, option in _options(chosen).items():
        if (value := getattr(arguments, option.name)) is not None:
            options[name] = value
    chosen.check_options(options)
    # Errors are found before TensorFlow is loaded.
    chosen.check_packages()
    check_export_directory(arguments.output, chosen.name)
    glossary = read_glossary(arguments)
    load_backend()
    from keras_transformer import export
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.inference.tasks import get_task

    task = read_config(arguments.model[0])["task"]
    chosen.check_task(task)
    pipeline = get_task(task).pipeline.load(arguments.model, dtype=options.get("dtype"))
    if options.get("dtype") == "auto":  # The pipeline has chosen it.
        options["dtype"] = pipeline.model.dtype_policy.name
    if chosen.includes_search:
        options["search"] = choose_search(arguments, pipeline.search)
    use_shortlist(pipeline, arguments)
    if glossary is not None:
        glossary.give_to(pipeline)
    export.export(pipeline, arguments.output, chosen.name, **options)
    say(f"wrote {arguments.output}")


def _options(chosen):
    """Returns the options of a format by the argument of its function."""
    return {
        name: dataclasses.replace(option, name=_NAMES.get(name, name))
        for name, option in options_of(chosen.options).items()
    }


def _options_of_formats():
    """Returns the options of all formats, each with the names of its formats."""
    found: dict = {}
    for chosen in FORMATS.values():
        for option in _options(chosen).values():
            found.setdefault(option.flag, (option, []))[1].append(chosen.name)
    return found.values()


def serve_options(parser):
    text = "model directory, SavedModel, or folder with a SavedModel in a folder of a number for "
    text += "each version; the default name is that of the folder"
    parser.add_argument("model", metavar="[NAME=]MODEL", nargs="+", help=text)
    add_glossary_options(parser)
    add_quantize_option(parser)
    add_engine_option(parser)
    for option in _server_options().values():
        add_option(parser, option)


def _server_options():
    """Returns the options of `ServerSettings` by field."""
    options = options_of(ServerSettings)
    option = dataclasses.replace(options["allowed_hosts"], name="allowed_host")
    return {**options, "allowed_hosts": option}


def run_serve(arguments):
    from keras_transformer.serving.models import find_models

    # Errors in the arguments come before TensorFlow is loaded.
    models = find_models(
        arguments.model, read_glossary(arguments), arguments.quantize, arguments.engine
    )
    given = {name: getattr(arguments, option.name) for name, option in _server_options().items()}
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
    request = json.dumps({"instances": [_example(server.model(name))]}, ensure_ascii=False)
    path = urllib.parse.quote(name, safe="")
    say(f"  curl {address}/v1/models/{path}:predict -d {shlex.quote(request)}")
    say("Ctrl-C ends the server.")
    http_server = server.http_server()
    # It waits for the answers that are due, and then sends itself the signal again.
    with contextlib.suppress(KeyboardInterrupt):
        http_server.run(sockets=[listener])
    say("stopped")
    os._exit(http_server.exit_status)  # Python would wait for threads that still compute.


def _example(model):
    """Returns an instance for a request: a text, with languages if the model has a choice."""
    from keras_transformer.data.languages import LANGUAGES

    text = _example_text(model.path)
    codes = () if model.pipeline is None else model.pipeline.source_tokenizer.languages
    if codes and not text.startswith(tuple(codes)):
        text = f"{codes[0]} {text}"
    names = model.signatures["serving_default"].inputs
    return text if len(names) == 1 else {n: "" if n in LANGUAGES else text for n in names}


def _example_text(directory):
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
