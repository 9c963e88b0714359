"""`keras-transformer export`: writes a model directory in a format that other programs run."""

import dataclasses

from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    SEARCH_OPTIONS,
    add_constraint_options,
    add_model_option,
    add_options,
    add_search_options,
    add_setting,
    add_shortlist_option,
    choose_search,
    is_given,
    load_backend,
    use_shortlist,
)
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError
from keras_transformer.export.formats import FORMATS

_SEARCH_OPTIONS = (*SEARCH_OPTIONS, "--n-best", "--shortlist", *CONSTRAINT_OPTIONS)


def define_options(parser):
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    add_options(files, {"--output DIR": "folder of the export"}, required=True)
    text = f"one of {', '.join(FORMATS)}"
    add_options(files, {"--format NAME=saved_model": text}, choices=FORMATS)
    for export_format in FORMATS.values():
        for option in export_format.options.values():
            text = f"with --format {export_format.name}: {option.text}"
            add_setting(files, dataclasses.replace(option, text=text))
    add_search_options(parser)
    add_shortlist_option(parser)
    add_constraint_options(parser)


def run(arguments):
    chosen = FORMATS[arguments.format]
    for other in FORMATS.values():
        for option in _options(other):
            if is_given(arguments, option) and option not in _options(chosen):
                rule = f"{option} is for --format {other.name}"
                raise UserError(f"{rule}. Received: format={chosen.name!r}")
    load_backend()
    from keras_transformer import export
    from keras_transformer.inference.model_directory import read_config
    from keras_transformer.inference.tasks import get_task

    # Raises an error before the model is loaded.
    export.check_export_directory(arguments.output, chosen.name)
    task = read_config(arguments.model[0])["task"]
    chosen.check_task(task)
    export.check_export_packages(chosen.name)
    given = {name: getattr(arguments, option.name) for name, option in chosen.options.items()}
    options = {name: value for name, value in given.items() if value is not None}
    pipeline = get_task(task).pipeline.load(arguments.model, dtype=options.get("dtype"))
    if options.get("dtype") == "auto":  # The pipeline has measured it.
        options["dtype"] = pipeline.model.dtype_policy.name
    if chosen.includes_search:
        options["search"] = choose_search(arguments, pipeline.search)
    use_shortlist(pipeline, arguments)
    export.export(pipeline, arguments.output, chosen.name, **options)
    say(f"wrote {arguments.output}")


def _options(export_format):
    """Returns the options of a format that other formats may not have."""
    flags = [option.flag for option in export_format.options.values()]
    return flags + list(_SEARCH_OPTIONS) if export_format.includes_search else flags
