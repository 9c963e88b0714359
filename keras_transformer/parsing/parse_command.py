"""`keras-transformer parse`: sentences in, trees out, line by line."""

import argparse
import functools
from collections.abc import Iterator

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.line_by_line import (
    add_line_options,
    check_input,
    load_pipeline,
    write_answers,
)
from keras_transformer.cli.progress import Progress
from keras_transformer.cli.text_files import check_output, chunks, read_lines
from keras_transformer.errors import UserError

UNCONSTRAINED = {
    "--unconstrained": "search among all sequences of symbols, and repair those that are not trees"
}


def define_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `parse`."""
    add_line_options(parser, "parsed")
    layout = parser.add_argument_group("layout").add_mutually_exclusive_group()
    options = {
        "--pretty": "write each tree on several lines, and an empty line after it",
        "--draw": "draw each tree, and write an empty line after it",
    }
    add_options(layout, options)
    add_options(parser, UNCONSTRAINED)


def run(arguments: argparse.Namespace) -> None:
    """Parses the lines."""
    check_output(arguments.output, [arguments.input or "-", *arguments.model])
    if arguments.n_best is not None and (arguments.pretty or arguments.draw):
        raise UserError("--n-best writes one answer per line; leave out --pretty and --draw.")
    total = check_input(arguments)
    parser, options = load_pipeline(arguments, "parsing")
    write_answers(
        arguments,
        Progress("parsing", total=total, unit="lines"),
        chunks(read_lines(arguments.input), arguments.chunk_size),
        functools.partial(_answers, parser, arguments),
        options | {"constrained": False if arguments.unconstrained else None},
    )


def _answers(parser, arguments, chunk, number, options) -> Iterator[str]:
    from keras_transformer.parsing.treebank import NO_TREE
    from keras_transformer.parsing.trees import draw_tree, format_tree

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
