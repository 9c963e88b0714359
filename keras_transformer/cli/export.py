"""`keras-transformer export`: a model directory becomes a SavedModel that takes raw text."""

import argparse

from keras_transformer.cli.arguments import add_command, add_search_options, beam_search
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import say

_DESCRIPTION = """
Exports a model directory as a TensorFlow SavedModel: text in, text out, with the tokenizer and the
search inside. It needs only `tensorflow` and `tensorflow_text` to run, and is what TensorFlow
Serving loads. Signature `serving_default` gives one translation and its score for each string,
`n_best` several.
"""

_EXAMPLE = """
keras-transformer export --model runs/en-de --output saved_models/en-de
saved_model_cli show --dir saved_models/en-de --all
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(
        commands, "export", "export a SavedModel for serving", _DESCRIPTION, _EXAMPLE
    )
    files = parser.add_argument_group("model and files")
    files.add_argument("--model", required=True, metavar="DIR", help="model directory")
    files.add_argument("--output", required=True, metavar="DIR", help="folder of the SavedModel")
    add_search_options(parser)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Exports.

    Args:
        arguments: parsed arguments.
    """
    load_backend()
    from keras_transformer import Translator
    from keras_transformer.export import check_export_directory, export_saved_model

    check_export_directory(arguments.output)  # Before the model is loaded, not after.
    translator = Translator.load(arguments.model)
    search = beam_search(arguments, translator.search)
    export_saved_model(translator, arguments.output, search=search)
    say(f"wrote {arguments.output}")
