"""`keras-transformer average`: averages the weights of several checkpoints."""

import os
import pathlib

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import say
from keras_transformer.cli.text_files import check_output
from keras_transformer.errors import UserError
from keras_transformer.files import finish_replacing, require_file
from keras_transformer.layouts import CHECKPOINT_FOLDER, WEIGHTS_FILE


def define_options(parser):
    text = "weights files (.weights.h5)"
    parser.add_argument("checkpoints", nargs="*", metavar="CHECKPOINT", help=text)
    options = {
        "--output FILE": "file of the average (.weights.h5)",
        "--model DIR": "a model directory with checkpoints",
        "--last N": "number of its last checkpoints to average",
    }
    add_options(parser, options)


def run(arguments):
    _check(arguments)
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
            raise UserError(f"{rule}. Received: --last {number}")
    output = arguments.output or model / WEIGHTS_FILE
    if not arguments.output:
        finish_replacing(model)
    average_checkpoints(paths, os.path.realpath(output) if arguments.output else output)
    say(f"wrote {output}: the average of {', '.join(path.name for path in paths)}")


def _check(arguments):
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
        checkpoints = sorted(pathlib.Path(arguments.model or "").glob("checkpoints/*.weights.h5"))
        check_output(arguments.output, [*arguments.checkpoints, *map(str, checkpoints)])
