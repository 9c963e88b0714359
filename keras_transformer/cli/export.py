"""`keras-transformer export`: writes a model directory in a format that other programs run."""

import dataclasses
from typing import Annotated

from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    SEARCH_OPTIONS,
    add_constraint_options,
    add_model_option,
    add_options,
    add_search_options,
    add_shortlist_option,
    choose_search,
    is_given,
    use_shortlist,
)
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.options import add_option, options_of
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError
from keras_transformer.export.formats import FORMATS, check_export_directory
from keras_transformer.settings.base import Metavar

_NAMES = {"dtype": "precision", "num_streams": "streams"}
_SEARCH_OPTIONS = (*SEARCH_OPTIONS, "--n-best", "--shortlist", *CONSTRAINT_OPTIONS)


def define_options(parser):
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    add_options(files, {"--output DIR": "folder of the export"}, required=True)
    text = f"one of {', '.join(FORMATS)}"
    add_options(files, {"--format NAME=saved_model": text}, choices=FORMATS)
    options = {option.flag: option for f in FORMATS.values() for option in _options(f).values()}
    for flag, option in options.items():
        names = _formats_with(flag)
        text = f"with --format {' or '.join(names)}: {option.text}"
        # Formats may allow different values of an option; `run` checks them.
        kind = option.type if len(names) == 1 else Annotated[str, Metavar("TYPE")]
        add_option(files, dataclasses.replace(option, text=text, type=kind))
    add_search_options(parser)
    add_shortlist_option(parser)
    add_constraint_options(parser)


def run(arguments):
    chosen = FORMATS[arguments.format]
    flags = {option.flag for f in FORMATS.values() for option in _options(f).values()}
    for flag in (*sorted(flags), *_SEARCH_OPTIONS):
        if is_given(arguments, flag) and chosen.name not in _formats_with(flag):
            rule = f"{flag} is for --format {' or '.join(_formats_with(flag))}"
            raise UserError(f"{rule}. Received: format={chosen.name!r}")
    given = {name: getattr(arguments, option.name) for name, option in _options(chosen).items()}
    options = {name: value for name, value in given.items() if value is not None}
    chosen.check_options(options)
    # Errors are found before TensorFlow is loaded.
    chosen.check_packages()
    check_export_directory(arguments.output, chosen.name)
    load_backend()
    from keras_transformer import export
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.inference.tasks import get_task

    task = read_config(arguments.model[0])["task"]
    chosen.check_task(task)
    pipeline = get_task(task).pipeline.load(arguments.model, dtype=options.get("dtype"))
    if options.get("dtype") == "auto":  # The pipeline has measured it.
        options["dtype"] = pipeline.model.dtype_policy.name
    if chosen.includes_search:
        options["search"] = choose_search(arguments, pipeline.search)
    use_shortlist(pipeline, arguments)
    export.export(pipeline, arguments.output, chosen.name, **options)
    say(f"wrote {arguments.output}")


def _options(chosen):
    """Returns the options of a format by the argument of its function."""
    return {
        name: dataclasses.replace(option, name=_NAMES.get(name, name))
        for name, option in options_of(chosen.options).items()
    }


def _formats_with(flag):
    """Returns the names of the formats that have an option."""
    return [
        f.name
        for f in FORMATS.values()
        if flag in {option.flag for option in _options(f).values()}
        or (f.includes_search and flag in _SEARCH_OPTIONS)
    ]
