"""`keras-transformer import`: writes a published model as a model directory."""

import dataclasses
import pathlib

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import say
from keras_transformer.files import read_json
from keras_transformer.layouts import CONFIG_FILE, IMPORTED_MODEL


def define_options(parser):
    text = "folder of a model in transformers' format, or its name on the hub (OWNER/NAME)"
    parser.add_argument("source", metavar="SOURCE", help=text)
    add_options(parser, {"--output DIR": "model directory to write"}, required=True)


def run(arguments):
    from keras_transformer.bridges.hub import find_model

    path = pathlib.Path(arguments.output, CONFIG_FILE)
    is_imported = path.is_file() and read_json(path).get("origin")
    layout = IMPORTED_MODEL if is_imported else dataclasses.replace(IMPORTED_MODEL, entries=set())
    layout.check_output(arguments.output)
    find_model(arguments.source)  # Raises its errors before TensorFlow is loaded.
    load_backend()
    from keras_transformer.bridges.opus_mt import load_opus_mt

    translator = load_opus_mt(arguments.source)
    translator.save(arguments.output)
    languages = translator.source_tokenizer.languages
    origin = translator.origin or {}
    license = origin.get("license", "not stated")
    say(f"wrote {arguments.output}: {origin['name']}, license {license}")
    if languages:
        say(f"Each text must begin with the code of its target language: {', '.join(languages)}")
