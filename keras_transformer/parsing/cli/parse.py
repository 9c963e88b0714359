"""`keras-transformer parse`: sentences in, trees out, line by line."""

import argparse
import sys
from collections.abc import Iterator

from keras_transformer.cli.arguments import (
    add_command,
    add_model_and_files,
    add_search_options,
    beam_search,
    positive_int,
    with_seed_offset,
)
from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.long_lines import add_batch_size, add_streams
from keras_transformer.cli.progress import Progress
from keras_transformer.cli.text_files import (
    check_output,
    chunks,
    count_lines,
    open_output,
    read_lines,
)
from keras_transformer.errors import UserError
from keras_transformer.files import require_file

_DESCRIPTION = """
Parses text, one sentence a line, its words separated by spaces, with a model directory that holds a
parser. Reads standard input and writes standard output unless told otherwise. Line N of the output
is the tree of line N in brackets, over exactly its words; that of an empty line is (()). Round
brackets among the words are ( and ), and -LRB- and -RRB- in the tree. With --model given several
times the models parse together, by the average of their log-probabilities.

With --n-best every answer is a line of four fields separated by tabs: the number of the input line
(from 1), the rank of the answer (from 1), its score (log-probability divided by the length penalty)
and the tree.
"""

_EXAMPLE = """
keras-transformer parse --model runs/parser --input test.words --output test.trees
echo "The dog barks ." | keras-transformer parse --model runs/parser --pretty
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(commands, "parse", "parse sentences to trees", _DESCRIPTION, _EXAMPLE)
    add_model_and_files(parser, "parsed")
    layout = parser.add_argument_group("layout").add_mutually_exclusive_group()
    layout.add_argument(
        "--pretty",
        action="store_true",
        help="write each tree on several lines, and an empty line after it",
    )
    layout.add_argument(
        "--draw", action="store_true", help="draw each tree, and write an empty line after it"
    )
    add_search_options(parser)
    batches = parser.add_argument_group("batches")
    add_batch_size(batches)
    add_streams(batches)
    batches.add_argument(
        "--chunk-size",
        type=positive_int,
        default=1024,
        metavar="N",
        help="lines that are read, sorted by length and parsed together "
        "(default: %(default)s; 1 when you type on a terminal)",
    )
    parser.add_argument(
        "--unconstrained",
        action="store_true",
        help="let the model write anything and repair what is no tree, instead of searching "
        "among trees only",
    )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Parses.

    Args:
        arguments: parsed arguments.
    """
    check_output(arguments.output, [arguments.input or "-", *arguments.model])
    if arguments.n_best is not None and (arguments.pretty or arguments.draw):
        raise UserError("--n-best writes an answer a line; leave out --pretty and --draw.")
    is_standard_input = arguments.input in (None, "-")
    # A pipe (`--input <(zcat text.gz)`) can be read once only, like standard input.
    is_file = not is_standard_input and require_file(arguments.input).is_file()
    # A bad line in a file is found now, not after an hour of parsing.
    total = count_lines(arguments.input) if is_file else None
    if is_standard_input and sys.stdin.isatty():
        arguments.chunk_size = 1
    num_streams = load_backend_in_streams(arguments.streams)
    from keras_transformer import Parser

    parser = Parser.load(arguments.model)
    search = beam_search(arguments, parser.search)
    with (
        open_output(arguments.output) as output,
        Progress("parsing", total=total, unit="lines") as progress,
    ):
        number, num_batches = 1, 0

        def show(num_lines):
            # Answers on a terminal are progress enough; a bar would run through them.
            if not output.isatty():
                progress.update(num_lines, note=f"batch {num_batches:,}")

        def count_batch(done, _):
            nonlocal num_batches
            num_batches += 1
            show(number - 1 + done)

        for chunk in chunks(read_lines(arguments.input), arguments.chunk_size):
            options = {
                "search": with_seed_offset(search, num_batches),
                "batch_size": arguments.batch_size,
                "num_streams": num_streams,
                "progress": count_batch,
                "constrained": False if arguments.unconstrained else None,
            }
            for line in _answers(parser, chunk, number, options, arguments):
                output.write(line + "\n")
            number += len(chunk)
            output.flush()
            show(number - 1)


def _answers(parser, chunk, number, options, arguments) -> Iterator[str]:
    from keras_transformer.parsing.treebank import NO_TREE

    if arguments.n_best is None:
        write = _writer(arguments)
        for tree in parser.parse(chunk, **options):
            yield NO_TREE if tree is None else write(tree)
            if arguments.pretty or arguments.draw:
                yield ""
        return
    for offset, parses in enumerate(parser.parses(chunk, **options)):
        answers = [(parse.score, parse.tree) for parse in parses] or [(0.0, NO_TREE)]
        for rank, (score, tree) in enumerate(answers, start=1):
            yield f"{number + offset}\t{rank}\t{score:.6f}\t{tree}"


def _writer(arguments):
    from keras_transformer.parsing.drawing import draw_tree, format_tree

    return draw_tree if arguments.draw else format_tree if arguments.pretty else str
