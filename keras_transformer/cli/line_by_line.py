"""Answers the lines of a file or a pipe with a model, for commands."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from keras_transformer.cli.arguments import (
    add_batch_options,
    add_model_option,
    add_options,
    add_search_options,
    choose_search,
)
from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.shortlist import use_shortlist
from keras_transformer.cli.text_files import open_output, read_lines
from keras_transformer.errors import UserError
from keras_transformer.files import require_file
from keras_transformer.inference.tasks import get_task

_ACTIONS = {
    "split": "split translates it in parts, of whole sentences where possible, and joins the "
    "answers; it also splits lines of more sentences than the model was trained on",
    "truncate": "truncate reads only its beginning",
    "error": "error stops before anything is computed",
}
_ADVICE = "split the line, or use --long-lines split or truncate"


def add_line_options(parser: argparse.ArgumentParser, done: str) -> tuple[Any, Any]:
    """Adds the options of a command that answers lines; `done` is a word such as "translated".

    Returns the option groups of files and of batches.
    """
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    options = {
        "--input FILE": "UTF-8 text, one sentence a line, .gz too, or a pipe (default: standard "
        "input)",
        "--output FILE": "output file (.gz supported); written only after all lines have been "
        f"{done} (default: standard output, line by line)",
    }
    add_options(files, options)
    add_search_options(parser)
    batches = add_batch_options(parser)
    text = (
        f"number of lines that are read, sorted by length and {done} together (default: "
        "%(default)s; 1 on a terminal)"
    )
    add_options(batches, {"--chunk-size N": text}, default=1024)
    return files, batches


def add_long_lines(
    group: argparse._ArgumentGroup, choices: Sequence[str], default: str, note: str = ""
) -> None:
    """Adds `--long-lines` with these choices; `default` and `note` are texts for the help."""
    actions = "; ".join(_ACTIONS[name] for name in choices)
    text = f"treatment of a source line that is longer than the model reads: {actions} (default: "
    add_options(group, {"--long-lines HOW": f"{text}{default}){note}"}, choices=choices)


def report_split(translator: Any, num_lines: int) -> None:
    """Prints the number of lines that were translated in parts, if there are any."""
    if translator.num_split:
        say(f"split {translator.num_split:,} of {num_lines:,} lines and joined the answers")


def check_lengths(
    tokenizer: Any,
    lines: Sequence[str],
    limit: int,  # maximum number of subwords, with the end of the sentence
    name: str,  # name of the file in the error
    first: int = 1,  # number of the first line
    advice: str = _ADVICE,
) -> None:
    """Raises a `UserError` that names the first line longer than the model reads, if any."""
    for number, ids in enumerate(tokenizer.encode_batch(lines), start=first):
        if len(ids) > limit - 1:
            raise UserError(
                f"{name}, line {number}: {len(ids):,} subwords are more than the {limit - 1:,} "
                f"that the model reads; {advice}."
            )


def check_input(arguments: argparse.Namespace) -> int | None:
    """Returns a file's number of lines, None for a pipe; sets chunks of one line for a terminal."""
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
    """Returns the pipeline in `--model`, and the options of its search methods."""
    num_streams = load_backend_in_streams(arguments.streams)
    pipeline = get_task(task).pipeline.load(arguments.model, dtype=arguments.precision)
    use_shortlist(pipeline, arguments)
    options = {"batch_size": arguments.batch_size, "num_streams": num_streams}
    return pipeline, options | {"search": choose_search(arguments, pipeline.search)}


def answer_all(method: Callable, inputs: Sequence, progress: Progress, **options) -> tuple:
    """Returns the answers of a pipeline's method to all inputs, and the seconds that it took."""
    start = time.monotonic()
    with progress:
        answers = method(inputs, progress=progress.update, **options)
    return answers, time.monotonic() - start


def save_answers(path: str | None, answers: Iterable[str]) -> None:
    """Writes answers to the file of `--output`, if it is given, one per line."""
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
    A search that samples gets a new seed for each chunk, because each batch uses one seed.
    """
    number, num_batches = 1, 0
    search = options["search"]

    def show(output: TextIO, num_lines: int) -> None:
        # On a terminal, the answers themselves show the progress.
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
