"""Answers of a model to the lines of a file or a pipe, for commands."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from keras_transformer.cli.arguments import add_options, choose_search
from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.text_files import open_output, read_lines
from keras_transformer.errors import UserError
from keras_transformer.files import require_file
from keras_transformer.inference.tasks import get_task


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


def load_pipeline(arguments: argparse.Namespace, task: str) -> tuple[Any, dict[str, Any]]:
    """Returns the pipeline in `--model`, and options of its methods that search."""
    num_streams = load_backend_in_streams(arguments.streams)
    pipeline = get_task(task).pipeline.load(arguments.model)
    options = {"batch_size": arguments.batch_size, "num_streams": num_streams}
    return pipeline, options | {"search": choose_search(arguments, pipeline.search)}


def answer_all(method: Callable, inputs: Sequence, progress: Progress, **options) -> tuple:
    """Returns the answers of a method of a pipeline to all inputs, and the seconds that it took."""
    start = time.monotonic()
    with progress:
        answers = method(inputs, progress=progress.update, **options)
    return answers, time.monotonic() - start


def save_answers(path: str | None, answers: Iterable[str]) -> None:
    """Writes answers to the file of `--output`, if there is one, a line for each."""
    if path:
        with open_output(path) as file:
            file.writelines(answer + "\n" for answer in answers)
        say(f"wrote {path}")


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
            changes = {"progress": count_batch}
            if hasattr(search, "seed"):
                seed = (search.seed + num_batches) % 2**31
                changes["search"] = dataclasses.replace(search, seed=seed)
            for line in answers(chunk, number, options | changes):
                output.write(line + "\n")
            number += len(chunk)
            output.flush()
            show(output, number - 1)
    return number - 1
