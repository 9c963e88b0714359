"""`keras-transformer translate`: text in, text out, line by line."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence

from keras_transformer.cli.arguments import (
    add_command,
    add_constraint_options,
    add_search_options,
    beam_search,
    constrain_search,
    positive_int,
)
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import Progress
from keras_transformer.cli.text_files import (
    as_line,
    check_output,
    chunks,
    open_output,
    read_all_lines,
    read_lines,
)
from keras_transformer.errors import UserError
from keras_transformer.files import require_file

_DESCRIPTION = """
Translates text, one sentence a line, with a model directory that `train` wrote. Reads standard
input and writes standard output unless told otherwise. Line N of the output belongs to line N of
the input; an empty line stays empty.

With --n-best every answer is a line of four fields separated by tabs: the number of the input line
(from 1), the rank of the answer (from 1), its score (log-probability divided by the length penalty)
and the text.
"""

_EXAMPLE = """
keras-transformer translate --model runs/en-de --input test.en --output test.de
echo "A dog runs." | keras-transformer translate --model runs/en-de --beam-size 8 --n-best 3
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(commands, "translate", "translate lines of text", _DESCRIPTION, _EXAMPLE)
    files = parser.add_argument_group("model and files")
    files.add_argument("--model", required=True, metavar="DIR", help="model directory")
    files.add_argument(
        "--input",
        metavar="FILE",
        help="UTF-8 text, one sentence a line, .gz too, or a pipe (default: standard input)",
    )
    files.add_argument(
        "--output",
        metavar="FILE",
        help="appears when everything is translated (default: standard output, as it comes)",
    )
    files.add_argument(
        "--prefix",
        metavar="FILE",
        help="how each answer begins: as many lines as the input; an empty line leaves it open",
    )
    add_search_options(parser)
    add_constraint_options(parser)
    add_batch_size(parser)
    files.add_argument(
        "--chunk-size",
        type=positive_int,
        default=1024,
        metavar="N",
        help="lines that are read, sorted by length and translated together "
        "(default: %(default)s; 1 when you type on a terminal)",
    )
    return parser


def add_batch_size(parser: argparse.ArgumentParser, has_targets: bool = False) -> None:
    """Adds `--batch-size` and `--cut-long-lines`.

    Args:
        parser: parser of a subcommand.
        has_targets: whether the model also reads given translations, which are never cut.
    """
    group = parser.add_argument_group("batches")
    group.add_argument(
        "--batch-size",
        type=positive_int,
        default=32,
        metavar="N",
        help="sentences computed at once (default: %(default)s)",
    )
    group.add_argument(
        "--cut-long-lines",
        action="store_true",
        help="read only the beginning of a source line that is longer than the model can take, "
        "instead of stopping with an error"
        + ("; a target line is never cut: its score would be that of another text" * has_targets),
    )


def check_lengths(translator, lines: Sequence[str], name: str, first: int = 1) -> None:
    """Raises if a line is longer than the model can read: half a translation is a wrong one.

    Args:
        translator: the translator.
        lines: source lines.
        name: the file's name, for the error.
        first: number of the first line.

    Raises:
        UserError: naming the first such line.
    """
    _check_lengths(
        translator.source_tokenizer.encode_batch(lines),
        translator.max_source_length,
        name,
        first,
        "split the line, or use --cut-long-lines",
    )


def check_target_lengths(translator, lines: Sequence[str], name: str) -> None:
    """Raises if a given translation is longer than the model has positions for.

    Args:
        translator: the translator.
        lines: target lines.
        name: the file's name, for the error.

    Raises:
        UserError: naming the first such line.
    """
    max_length = translator.model.config.max_length
    if max_length is not None:
        ids = translator.target_tokenizer.encode_batch(lines)
        _check_lengths(ids, max_length, name, 1, "shorten it and its source")


def _check_lengths(
    lines: Sequence[Sequence[int]], max_length: int, name: str, first: int, advice: str
) -> None:
    limit = max_length - 1  # the end of the sentence takes one place
    for number, ids in enumerate(lines, start=first):
        if len(ids) > limit:
            raise UserError(
                f"{name}, line {number}: {len(ids):,} subwords are more than the {limit:,} that "
                f"the model reads; {advice}."
            )


def run(arguments: argparse.Namespace) -> None:
    """Translates.

    Args:
        arguments: parsed arguments.
    """
    check_output(arguments.output)
    is_standard_input = arguments.input in (None, "-")
    # A pipe (`--input <(zcat text.gz)`) can be read once only, like standard input.
    is_file = not is_standard_input and require_file(arguments.input).is_file()
    # A bad line in a file is found now, not after an hour of translating.
    total = _count_lines(arguments.input) if is_file else None
    prefixes = None
    if arguments.prefix is not None:
        prefixes = read_all_lines(arguments.prefix, "prefix")
        if is_file:
            _check_prefixes(prefixes, total, arguments.prefix)
    if is_standard_input and sys.stdin.isatty():
        arguments.chunk_size = 1
    load_backend()
    from keras_transformer import Translator

    translator = Translator.load(arguments.model)
    search = constrain_search(arguments, beam_search(arguments, translator.search))
    if is_file:
        for _ in _chunks(translator, arguments):
            pass  # the same for lines that are too long
    with (
        open_output(arguments.output) as output,
        Progress("translating", total=total, unit="lines") as progress,
    ):
        num_lines = 0
        for number, chunk in _chunks(translator, arguments):
            num_lines = number - 1 + len(chunk)
            of_chunk = None if prefixes is None else prefixes[number - 1 : num_lines]
            if of_chunk is not None and len(of_chunk) < len(chunk):
                break
            chunk_search = _with_seed_offset(search, number - 1)
            for line in _answers(translator, chunk, number, of_chunk, chunk_search, arguments):
                output.write(line + "\n")
            output.flush()
            # Answers on a terminal are progress enough; a bar would run through them.
            if not output.isatty():
                progress.advance(len(chunk))
        if prefixes is not None:
            _check_prefixes(prefixes, num_lines, arguments.prefix)


def _with_seed_offset(search, offset: int):
    """Gives a search that draws at random other numbers for each chunk.

    The offset is the number of lines before: a call takes a seed for each of its batches, of which
    it has no more than lines, so no two batches of a file share one.
    """
    if not hasattr(search, "seed"):
        return search
    return dataclasses.replace(search, seed=(search.seed + offset) % 2**31)


def _count_lines(path: str) -> int:
    count = sum(1 for _ in read_lines(path))
    if not count:
        raise UserError(f"The input file {path!r} is empty.")
    return count


def _chunks(translator, arguments: argparse.Namespace) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line, and lines that the model can read."""
    name = "standard input" if arguments.input in (None, "-") else repr(arguments.input)
    number = 1
    for chunk in chunks(read_lines(arguments.input), arguments.chunk_size):
        if not arguments.cut_long_lines:
            check_lengths(translator, chunk, name, first=number)
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


def _answers(translator, chunk, number, prefixes, search, arguments) -> Iterator[str]:
    options = {"search": search, "batch_size": arguments.batch_size, "prefixes": prefixes}
    if arguments.n_best is None:
        yield from map(as_line, translator.translate(chunk, **options))
        return
    hypotheses = translator.hypotheses(chunk, **options)
    for offset, answers in enumerate(hypotheses):
        for rank, answer in enumerate(answers, start=1):
            text = as_line(answer.text).replace("\t", " ")
            yield f"{number + offset}\t{rank}\t{answer.score:.6f}\t{text}"
