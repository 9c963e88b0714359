"""`keras-transformer parse`: parses text line by line."""

import functools

from keras_transformer.cli.arguments import add_line_options, add_options, load_pipeline
from keras_transformer.cli.parsing import UNCONSTRAINED
from keras_transformer.cli.progress import ProgressBar
from keras_transformer.cli.text_files import (
    check_output,
    chunks,
    count_lines,
    input_lines,
    write_answers,
)
from keras_transformer.errors import UserError
from keras_transformer.parsing.trees import NO_TREE, draw_tree, format_tree


def define_options(parser):
    add_line_options(parser, "parsed")
    options = {
        "--pretty": "write each tree on several lines, and an empty line after it",
        "--draw": "draw each tree, and write an empty line after it",
    }
    add_options(parser.add_argument_group("layout").add_mutually_exclusive_group(), options)
    add_options(parser, UNCONSTRAINED)


def run(arguments):
    check_output(arguments.output, [arguments.input or "-", *arguments.model])
    if arguments.n_best is not None and (arguments.pretty or arguments.draw):
        raise UserError("--n-best writes one answer per line; leave out --pretty and --draw.")
    total = count_lines(arguments)
    parser, options = load_pipeline(arguments, "parsing")
    write_answers(
        arguments,
        ProgressBar("parsing", total=total, unit="lines"),
        chunks(input_lines(arguments), arguments.chunk_size),
        functools.partial(_answers, parser, arguments),
        options | {"constrained": False if arguments.unconstrained else None},
    )


def _answers(parser, arguments, chunk, number, options):
    if arguments.n_best is None:
        write = draw_tree if arguments.draw else format_tree if arguments.pretty else str
        for tree in parser.parse(chunk, **options):
            yield NO_TREE if tree is None else write(tree)
            if arguments.pretty or arguments.draw:
                yield ""
        return
    for offset, parses in enumerate(parser.parses(chunk, **options)):
        answers = [(parse.score, parse.tree) for parse in parses] or [(0.0, NO_TREE)]
        for rank, (score, tree) in enumerate(answers, start=1):
            yield f"{number + offset}\t{rank}\t{score:.6f}\t{tree}"
