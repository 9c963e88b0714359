"""The loop of a command that answers its input line by line."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from keras_transformer.cli.arguments import with_seed_offset
from keras_transformer.cli.progress import Progress
from keras_transformer.cli.text_files import count_lines, open_output
from keras_transformer.files import require_file
from keras_transformer.settings.setting import COUNT


def add_chunk_size(group: argparse._ArgumentGroup, done: str) -> None:
    """Adds `--chunk-size`; `done` is the participle of what the command does with lines."""
    group.add_argument(
        "--chunk-size",
        type=COUNT,
        default=1024,
        metavar="N",
        help=f"number of lines that are read, sorted by length and {done} together "
        "(default: %(default)s; 1 on a terminal)",
    )


def check_input(arguments: argparse.Namespace) -> int | None:
    """Checks the input, and chooses chunks of one line on a terminal.

    Returns:
        The number of lines if the input is a file. Otherwise, as for a pipe, it can be read only
        once, and the result is None.

    Raises:
        UserError: If the file is missing or empty, or a line is not UTF-8.
    """
    if arguments.input in (None, "-"):
        if sys.stdin.isatty():
            arguments.chunk_size = 1
        return None
    return count_lines(arguments.input) if require_file(arguments.input).is_file() else None


def write_answers(
    arguments: argparse.Namespace,
    progress: Progress,
    chunks: Iterable[list[str]],
    answers: Callable[[list[str], int, dict[str, Any]], Iterator[str]],
    options: dict[str, Any],
) -> int:
    """Writes the answers to all lines.

    Args:
        arguments: Parsed arguments.
        progress: The bar of the command.
        chunks: The lines.
        answers: Called with a chunk, the number of its first line and options of a pipeline's
            method; yields lines of output.
        options: Options that are the same for all chunks, among them `search`.

    Returns:
        The number of lines that were read.
    """
    number, num_batches = 1, 0
    search = options["search"]

    def show(output: TextIO, num_lines: int) -> None:
        # On a terminal the answers themselves show the progress.
        if not output.isatty():
            progress.update(num_lines, note=f"batch {num_batches:,}")

    with open_output(arguments.output) as output, progress:

        def count_batch(done: int, _: int) -> None:
            nonlocal num_batches
            num_batches += 1
            show(output, number - 1 + done)

        for chunk in chunks:
            changes = {
                "search": with_seed_offset(search, num_batches),
                "batch_size": arguments.batch_size,
                "progress": count_batch,
            }
            for line in answers(chunk, number, options | changes):
                output.write(line + "\n")
            number += len(chunk)
            output.flush()
            show(output, number - 1)
    return number - 1
