"""`keras-transformer export`: writes a model directory in a format that other programs run."""

import argparse
import dataclasses

from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    add_constraint_options,
    add_model_option,
    add_options,
    add_search_options,
    add_setting,
    choose_search,
    is_given,
)
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import say
from keras_transformer.cli.shortlist import add_shortlist_option, use_shortlist
from keras_transformer.errors import UserError
from keras_transformer.export.formats import FORMATS, ExportFormat

_SEARCH_OPTIONS = (
    *("--beam-size", "--length-penalty", "--patience", "--n-best"),
    *("--shortlist", *CONSTRAINT_OPTIONS),
)


def define_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `export`."""
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    add_options(files, {"--output DIR": "folder of the export"}, required=True)
    text = f"one of {', '.join(FORMATS)} (default: saved_model)"
    add_options(files, {"--format NAME": text}, choices=FORMATS, default="saved_model")
    for one in FORMATS.values():
        for option in one.options.values():
            text = f"with --format {one.name}: {option.text}"
            add_setting(files, dataclasses.replace(option, text=text))
    add_search_options(parser)
    add_shortlist_option(parser)
    add_constraint_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Loads the model and writes the export."""
    chosen = FORMATS[arguments.format]
    for one in FORMATS.values():
        for option in _options(one):
            if is_given(arguments, option) and option not in _options(chosen):
                raise UserError(
                    f"{option} is for --format {one.name}. Received: format={chosen.name!r}"
                )
    load_backend()
    from keras_transformer import export
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.inference.tasks import get_task

    # Raises an error before the model is loaded.
    export.check_export_directory(arguments.output, chosen.name)
    task = read_config(arguments.model[0])["task"]
    chosen.check_task(task)
    export.check_export_packages(chosen.name)
    given = {name: getattr(arguments, one.name) for name, one in chosen.options.items()}
    options = {name: value for name, value in given.items() if value is not None}
    pipeline = get_task(task).pipeline.load(arguments.model, dtype=options.get("dtype"))
    if options.get("dtype") == "auto":  # The pipeline has measured it.
        options["dtype"] = pipeline.model.dtype_policy.name
    if chosen.includes_search:
        options["search"] = choose_search(arguments, pipeline.search)
    use_shortlist(pipeline, arguments)
    export.export(pipeline, arguments.output, chosen.name, **options)
    say(f"wrote {arguments.output}")


def _options(one: ExportFormat) -> list[str]:
    """Returns the options of a format that other formats may not have."""
    own = [option.flag for option in one.options.values()]
    return own + list(_SEARCH_OPTIONS) if one.includes_search else own
