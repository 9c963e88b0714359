"""`keras-transformer export`: writes a model directory in a format that other programs run."""

import argparse

from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    add_command,
    add_constraint_options,
    add_model_option,
    add_search_options,
    beam_search,
    constrain_search,
    is_given,
)
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError
from keras_transformer.settings.setting import COUNT

_DESCRIPTION = """
Exports a model directory, by default as a TensorFlow SavedModel: text in, text out, with the
tokenizer and the search inside. The SavedModel needs only `tensorflow` and `tensorflow_text`, and
TensorFlow Serving loads it. Its signature `serving_default` returns one translation and its score
for each string, and `n_best` several; `score` and `attention` take given translations, and `limits`
returns the maximum length of a text. docs/serving.md shows how to serve it. A parser becomes a
SavedModel from sentences to trees in brackets; see docs/parsing.md. Several models of one
vocabulary become one SavedModel, in which they answer together.

The other formats hold the model and, in files of their own, the tokenizers; the program that runs
them does the search. ctranslate2 is for the engine of this name, which has its own beam search;
onnx and litert hold the encoder and one step of the decoder, for onnxruntime and for LiteRT
(formerly TensorFlow Lite). docs/runtimes.md shows how to use each of them.
"""

_EXAMPLE = """
keras-transformer export --model runs/en-de --output saved_models/en-de
saved_model_cli show --dir saved_models/en-de --all
keras-transformer export --model runs/en-de --precision bfloat16 --output saved_models/en-de-small
keras-transformer export --model runs/en-de --format ctranslate2 --quantization int8 \\
    --output exports/en-de
"""

PRECISIONS = ("float32", "bfloat16")
FORMATS = ("saved_model", "ctranslate2", "onnx", "litert")
# Options that only one format has.
_OWN_OPTIONS = {
    "--beam-size": "saved_model",
    "--length-penalty": "saved_model",
    "--n-best": "saved_model",
    "--precision": "saved_model",
    "--streams": "saved_model",
    **dict.fromkeys(CONSTRAINT_OPTIONS, "saved_model"),
    "--quantization": "ctranslate2",
}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command and returns it."""
    parser = add_command(commands, "export", "export a model for serving", _DESCRIPTION, _EXAMPLE)
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    files.add_argument("--output", required=True, metavar="DIR", help="folder of the export")
    files.add_argument(
        "--format",
        choices=FORMATS,
        default="saved_model",
        help=f"one of {', '.join(FORMATS)} (default: saved_model)",
        metavar="NAME",
    )
    files.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="with --format saved_model: type of weights and computation; bfloat16 halves the size "
        "and changes some translations (default: float32)",
        metavar="TYPE",
    )
    files.add_argument(
        "--streams",
        type=COUNT,
        metavar="N",
        help="with --format saved_model: search N parts of a request at the same time, each in a "
        "thread; for a server on a CPU with one thread per operation (default: 1)",
    )
    files.add_argument(
        "--quantization",
        metavar="TYPE",
        help="with --format ctranslate2: type of the weights, such as int8, int8_float16 or "
        "float16 (default: float32)",
    )
    add_search_options(parser)
    add_constraint_options(parser)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Exports."""
    for option, format in _OWN_OPTIONS.items():
        if is_given(arguments, option) and format != arguments.format:
            raise UserError(
                f"{option} is for --format {format}. Received: --format {arguments.format}"
            )
    load_backend()
    from keras_transformer import export
    from keras_transformer.export.formats import FORMATS as EXPORT_FORMATS
    from keras_transformer.export.steps import check_searches_outside
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.inference.tasks import get_task

    # Before the model is loaded, not after.
    export.check_export_directory(arguments.output, arguments.format)
    task = read_config(arguments.model[0])["task"]
    if arguments.format != "saved_model":
        check_searches_outside(EXPORT_FORMATS[arguments.format].title, task)
    export.check_export_packages(arguments.format)
    translator = get_task(task).pipeline.load(arguments.model, dtype=arguments.precision)
    if arguments.format == "saved_model":
        search = constrain_search(arguments, beam_search(arguments, translator.search))
        export.export_saved_model(
            translator, arguments.output, search, arguments.precision, arguments.streams or 1
        )
    elif arguments.format == "ctranslate2":
        export.export_ctranslate2(translator, arguments.output, arguments.quantization)
    elif arguments.format == "onnx":
        export.export_onnx(translator, arguments.output)
    else:
        export.export_litert(translator, arguments.output)
    say(f"wrote {arguments.output}")
