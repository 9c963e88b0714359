"""`keras-transformer translate`: text in, text out, line by line."""

import argparse
import sys
from collections.abc import Iterator

from keras_transformer.cli.arguments import (
    add_command,
    add_constraint_options,
    add_model_and_files,
    add_search_options,
    beam_search,
    constrain_search,
    positive_int,
    with_seed_offset,
)
from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.long_lines import add_batch_options, check_lengths, report_split
from keras_transformer.cli.progress import Progress
from keras_transformer.cli.text_files import (
    as_line,
    check_output,
    chunks,
    count_lines,
    open_output,
    read_all_lines,
    read_lines,
)
from keras_transformer.errors import UserError
from keras_transformer.files import require_file

_DESCRIPTION = """
Translates text, one sentence a line, with a model directory that `train` wrote. Reads standard
input and writes standard output unless told otherwise. Line N of the output belongs to line N of
the input; an empty line stays empty. A line of more sentences than the model was trained on at once
is translated in parts, and standard error says how many lines were (--long-lines). With --model
given several times the models translate together, by the average of their log-probabilities.

With --n-best every answer is a line of four fields separated by tabs: the number of the input line
(from 1), the rank of the answer (from 1), its score (log-probability divided by the length penalty)
and the text.
"""

_EXAMPLE = """
keras-transformer translate --model runs/en-de --input test.en --output test.de
echo "A dog runs." | keras-transformer translate --model runs/en-de --beam-size 8 --n-best 3
"""

_LONG_LINES = ("split", "truncate", "error")
_N_BEST_ADVICE = "with --n-best split the line into sentences, or use --long-lines truncate"


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(commands, "translate", "translate lines of text", _DESCRIPTION, _EXAMPLE)
    files = add_model_and_files(parser, "translated")
    files.add_argument(
        "--prefix",
        metavar="FILE",
        help="how each answer begins: as many lines as the input; an empty line leaves it open",
    )
    add_search_options(parser)
    add_constraint_options(parser)
    add_batch_options(parser, _LONG_LINES, "split; error with --n-best")
    files.add_argument(
        "--chunk-size",
        type=positive_int,
        default=1024,
        metavar="N",
        help="lines that are read, sorted by length and translated together "
        "(default: %(default)s; 1 when you type on a terminal)",
    )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Translates.

    Args:
        arguments: parsed arguments.
    """
    check_output(arguments.output, [arguments.input or "-", arguments.prefix, *arguments.model])
    _choose_long_lines(arguments)
    is_standard_input = arguments.input in (None, "-")
    # A pipe (`--input <(zcat text.gz)`) can be read once only, like standard input.
    is_file = not is_standard_input and require_file(arguments.input).is_file()
    # A bad line in a file is found now, not after an hour of translating.
    total = count_lines(arguments.input) if is_file else None
    prefixes = None
    if arguments.prefix is not None:
        prefixes = read_all_lines(arguments.prefix, "prefix")
        if is_file:
            _check_prefixes(prefixes, total, arguments.prefix)
    if is_standard_input and sys.stdin.isatty():
        arguments.chunk_size = 1
    num_streams = load_backend_in_streams(arguments.streams)
    from keras_transformer import Translator

    translator = Translator.load(arguments.model)
    search = constrain_search(arguments, beam_search(arguments, translator.search))
    if is_file and arguments.long_lines == "error":
        for _ in _chunks(translator, arguments):
            pass  # the same for lines that are too long
    with (
        open_output(arguments.output) as output,
        Progress("translating", total=total, unit="lines") as progress,
    ):
        num_lines = num_batches = 0

        def show(num_lines):
            # Answers on a terminal are progress enough; a bar would run through them.
            if not output.isatty():
                progress.update(num_lines, note=f"batch {num_batches:,}")

        def count_batch(done, _):
            nonlocal num_batches
            num_batches += 1
            show(number - 1 + done)

        for number, chunk in _chunks(translator, arguments):
            num_lines = number - 1 + len(chunk)
            of_chunk = None if prefixes is None else prefixes[number - 1 : num_lines]
            if of_chunk is not None and len(of_chunk) < len(chunk):
                break
            options = {
                "search": with_seed_offset(search, num_batches),
                "batch_size": arguments.batch_size,
                "num_streams": num_streams,
                "prefixes": of_chunk,
                "progress": count_batch,
            }
            for line in _answers(translator, chunk, number, options, arguments):
                output.write(line + "\n")
            output.flush()
            show(num_lines)
        if prefixes is not None:
            _check_prefixes(prefixes, num_lines, arguments.prefix)
    report_split(translator, num_lines)


def _choose_long_lines(arguments: argparse.Namespace) -> None:
    if arguments.n_best is None:
        arguments.long_lines = arguments.long_lines or "split"
    elif arguments.long_lines == "split":
        raise UserError(
            "--long-lines split has one answer for a line, and --n-best several: the answers to "
            "the parts of a line are none to the line. Use --long-lines truncate or error."
        )
    else:
        arguments.long_lines = arguments.long_lines or "error"


def _chunks(translator, arguments: argparse.Namespace) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line, and lines that the model can read."""
    name = "standard input" if arguments.input in (None, "-") else repr(arguments.input)
    advice = {} if arguments.n_best is None else {"advice": _N_BEST_ADVICE}
    number = 1
    for chunk in chunks(read_lines(arguments.input), arguments.chunk_size):
        if arguments.long_lines == "error":
            check_lengths(translator, chunk, name, first=number, **advice)
        yield number, chunk
        number += len(chunk)


def _check_prefixes(prefixes: list[str], num_lines: int, path: str) -> None:
    if len(prefixes) != num_lines:
        # There may be lines that nobody has read yet.
        number = "more" if len(prefixes) < num_lines else f"{num_lines:,}"
        raise UserError(
            "The prefix file must have as many lines as the input. "
            f"Received: {path!r} with {len(prefixes):,}, and {number} lines of input."
        )


def _answers(translator, chunk, number, options, arguments) -> Iterator[str]:
    if arguments.n_best is None:
        long_texts = arguments.long_lines
        yield from map(as_line, translator.translate(chunk, long_texts=long_texts, **options))
        return
    hypotheses = translator.hypotheses(chunk, **options)
    for offset, answers in enumerate(hypotheses):
        for rank, answer in enumerate(answers, start=1):
            text = as_line(answer.text).replace("\t", " ")
            yield f"{number + offset}\t{rank}\t{answer.score:.6f}\t{text}"
