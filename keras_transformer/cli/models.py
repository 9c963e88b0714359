"""`import`, `average` and `attend`: commands for one model."""

import os
import pathlib

from keras_transformer.cli.arguments import add_language_options, add_options, in_languages
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import say
from keras_transformer.cli.text_files import check_output
from keras_transformer.errors import UserError
from keras_transformer.files import finish_replacing, read_json, require_file
from keras_transformer.layouts import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    IMPORTED_MODEL,
    IN_SAVED_MODEL,
    SAVED_MODEL_FILE,
    WEIGHTS_FILE,
)

_ENDINGS = (".html", ".pdf", ".png", ".svg")
_KINDS = ("encoder", "decoder", "cross")


def import_options(parser):
    text = "folder of a model in transformers' format, or its name on the hub (OWNER/NAME)"
    parser.add_argument("source", metavar="SOURCE", help=text)
    add_options(parser, {"--output DIR": "model directory to write"}, required=True)
    languages = {
        "--source-language CODE": "language of the texts, such as en (M2M100) or eng_Latn (NLLB)",
        "--target-language CODE": "language to translate into",
    }
    add_options(parser.add_argument_group("M2M100, NLLB-200 and mBART-50"), languages)


def run_import(arguments):
    from keras_transformer.bridges.hub import find_model

    IMPORTED_MODEL.check_output(arguments.output)
    # Raises its errors before TensorFlow is loaded.
    kind = read_json(find_model(arguments.source) / CONFIG_FILE)["model_type"]
    given = arguments.source_language, arguments.target_language
    needs_languages = kind != "marian"
    if any(bool(code) != needs_languages for code in given):
        rule = "--source-language and --target-language are for models of many languages, which "
        rule += "need both: M2M100, NLLB-200 and mBART-50"
        raise UserError(f"{rule}. Received: {arguments.source!r} with model_type={kind!r}")
    load_backend()
    from keras_transformer.bridges import load_multilingual, load_opus_mt

    if kind == "marian":
        translator = load_opus_mt(arguments.source)
    else:
        translator = load_multilingual(arguments.source, *given)
    translator.save(arguments.output)
    languages = translator.source_tokenizer.languages
    origin = translator.origin or {}
    license = origin.get("license", "not stated")
    say(f"wrote {arguments.output}: {origin['name']}, license {license}")
    if languages:
        say(f"Each text must begin with the code of its target language: {', '.join(languages)}")


def average_options(parser):
    text = "weights files (.weights.h5)"
    parser.add_argument("checkpoints", nargs="*", metavar="CHECKPOINT", help=text)
    options = {
        "--output FILE": "file of the average (.weights.h5)",
        "--model DIR": "a model directory with checkpoints",
        "--last N": "number of its last checkpoints to average",
    }
    add_options(parser, options)


def run_average(arguments):
    _check_average(arguments)
    load_backend()
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.training import Checkpoints, average_checkpoints

    paths = list(map(pathlib.Path, arguments.checkpoints))
    if not paths:
        read_config(arguments.model)  # raises if it is damaged
        model, number = pathlib.Path(arguments.model), arguments.last
        paths = Checkpoints(model / CHECKPOINT_FOLDER).weight_files()[-number:]
        if len(paths) < number:
            rule = f"{arguments.model!r} keeps {len(paths)} checkpoints"
            advice = "train --keep-checkpoints N keeps more"
            raise UserError(f"{rule}; {advice}. Received: --last {number}")
    output = arguments.output or model / WEIGHTS_FILE
    if not arguments.output:
        finish_replacing(model)
    average_checkpoints(paths, os.path.realpath(output) if arguments.output else output)
    say(f"wrote {output}: the average of {', '.join(path.name for path in paths)}")


def _check_average(arguments):
    if arguments.checkpoints:
        if arguments.model or arguments.last:
            raise UserError("Give either the checkpoints or --model with --last, not both.")
        if not arguments.output:
            raise UserError("Checkpoints need --output FILE, the file of their average.")
        for path in arguments.checkpoints:
            require_file(path)
    elif not arguments.model or not arguments.last:
        raise UserError("Give the checkpoints to average, or --model DIR with --last N.")
    if arguments.output:
        folder = arguments.model and pathlib.Path(arguments.model, CHECKPOINT_FOLDER)
        checkpoints = map(str, folder.glob("*.weights.h5")) if folder else ()
        check_output(arguments.output, [*arguments.checkpoints, *checkpoints])


def attend_options(parser):
    parser.add_argument("sentence", metavar="SENTENCE", help="text that the model reads")
    files = parser.add_argument_group("model and files")
    options = {"--model DIR": "model directory or SavedModel"}
    add_options(files, options, action="append", required=True)
    options = {"--output FILE": f"page or picture, ending in {', '.join(_ENDINGS)}"}
    add_options(files, options, required=True)
    text = "answer to draw; a parser's is a tree in brackets (default: the model's own)"
    add_options(files, {"--translation TEXT": text})
    add_language_options(files)
    view = parser.add_argument_group("what is drawn, or shown first by a page")
    text = f"one of {', '.join(_KINDS)}; cross is the decoder's to the source"
    add_options(view, {"--attention KIND=cross": text}, choices=_KINDS)
    text = "number of the layer, from 1 (default: all; of a page the last)"
    add_options(view, {"--layer N": text})
    add_options(view, {"--head N": "number of its head, from 1 (default: all)"})


def run_attend(arguments):
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
    pipeline = in_languages(pipeline, arguments)
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
