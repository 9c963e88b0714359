"""`keras-transformer attend`: draws a model's attention."""

import pathlib

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import say
from keras_transformer.cli.text_files import check_output
from keras_transformer.errors import UserError
from keras_transformer.layouts import IN_SAVED_MODEL, SAVED_MODEL_FILE

_ENDINGS = (".html", ".pdf", ".png", ".svg")
_KINDS = ("encoder", "decoder", "cross")


def define_options(parser):
    parser.add_argument("sentence", metavar="SENTENCE", help="text that the model reads")
    files = parser.add_argument_group("model and files")
    options = {"--model DIR": "model directory or SavedModel"}
    add_options(files, options, action="append", required=True)
    options = {"--output FILE": f"page or picture, ending in {', '.join(_ENDINGS)}"}
    add_options(files, options, required=True)
    text = "answer to draw; a parser's is a tree in brackets (default: the model's own)"
    add_options(files, {"--translation TEXT": text})
    view = parser.add_argument_group("what is drawn, or shown first by a page")
    text = f"one of {', '.join(_KINDS)}; cross is the decoder's to the source"
    add_options(view, {"--attention KIND=cross": text}, choices=_KINDS)
    text = "number of the layer, from 1 (default: all; of a page the last)"
    add_options(view, {"--layer N": text})
    add_options(view, {"--head N": "number of its head, from 1 (default: all)"})


def run(arguments):
    ending = pathlib.Path(arguments.output).suffix.lower()
    if ending not in _ENDINGS:
        rule = f"--output must end in {', '.join(_ENDINGS)}"
        raise UserError(f"{rule}. Received: --output {arguments.output!r}")
    if len(arguments.model) > 1:
        raise UserError(f"Give one --model, not an ensemble. Received: {len(arguments.model)}")
    check_output(arguments.output, arguments.model)
    directory = pathlib.Path(arguments.model[0])
    if (directory / SAVED_MODEL_FILE).is_file():
        directory /= IN_SAVED_MODEL
        if not directory.is_dir():
            message = "A SavedModel must be of this version and of one model that is not quantized"
            raise UserError(f"{message}. Received: --model {arguments.model[0]!r}")
    load_backend()
    from keras_transformer import evaluation
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.inference.tasks import get_task

    pipeline = get_task(read_config(directory)["task"]).pipeline.load(directory)
    weights = evaluation.attention_weights(pipeline, arguments.sentence, arguments.translation)
    kind, numbers = arguments.attention, {"layer": arguments.layer, "head": arguments.head}
    if ending == ".html":
        numbers["title"] = arguments.sentence
        evaluation.attention_page(weights, arguments.output, kind, **numbers)
    else:
        names = [f"{name} {number}" for name, number in numbers.items() if number]
        title = ", ".join([f"{kind} attention", *names])
        evaluation.plot_attention(*weights.view(kind, **numbers), arguments.output, title=title)
    say(f"wrote {arguments.output}")
