"""The loop of a command that answers its input line by line."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.progress import Progress
from keras_transformer.cli.text_files import open_output, read_lines
from keras_transformer.errors import UserError
from keras_transformer.files import require_file


def add_chunk_size(group: argparse._ArgumentGroup, done: str) -> None:
    """Adds `--chunk-size`; `done` is the participle of what the command does with lines."""
    text = (
        f"number of lines that are read, sorted by length and {done} together (default: "
        "%(default)s; 1 on a terminal)"
    )
    add_options(group, {"--chunk-size N": text}, default=1024)


def check_input(arguments: argparse.Namespace) -> int | None:
    """Returns the number of lines of a file, None for a pipe; a terminal gets chunks of one."""
    if arguments.input in (None, "-"):
        if sys.stdin.isatty():
            arguments.chunk_size = 1
        return None
    if not require_file(arguments.input).is_file():
        return None
    count = sum(1 for _ in read_lines(arguments.input))
    if not count:
        raise UserError(f"The input file {arguments.input!r} is empty.")
    return count


def write_answers(
    arguments: argparse.Namespace,
    progress: Progress,
    chunks: Iterable[list[str]],
    answers: Callable[[list[str], int, dict[str, Any]], Iterator[str]],
    options: dict[str, Any],
) -> int:
    """Writes the answers to all lines and returns the number of lines that were read.

    `answers` takes a chunk, the number of its first line and the options of a pipeline's method.
    A search that samples gets another seed for each chunk, because each batch uses one.
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
            changes = {"batch_size": arguments.batch_size, "progress": count_batch}
            if hasattr(search, "seed"):
                seed = (search.seed + num_batches) % 2**31
                changes["search"] = dataclasses.replace(search, seed=seed)
            for line in answers(chunk, number, options | changes):
                output.write(line + "\n")
            number += len(chunk)
            output.flush()
            show(output, number - 1)
    return number - 1
