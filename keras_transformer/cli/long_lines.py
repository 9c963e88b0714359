"""Options of batches, and lines that are longer than the model reads."""

import argparse
from collections.abc import Sequence

from keras_transformer.cli.arguments import positive_int
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError

_WHAT_HAPPENS = {
    "split": "split: translate it in parts, of whole sentences where there are any, and join the "
    "answers; also where it has more sentences than the lines that the model was trained on",
    "truncate": "truncate: read only its beginning",
    "error": "error: stop before anything is computed",
}
_ADVICE = "split the line, or use --long-lines split or truncate"


def add_batch_size(group) -> None:
    """Adds `--batch-size`.

    Args:
        group: a group of options of a subcommand.
    """
    group.add_argument(
        "--batch-size",
        type=positive_int,
        default=32,
        metavar="N",
        help="sentences computed at once (default: %(default)s)",
    )


def add_streams(group) -> None:
    """Adds `--streams`.

    Args:
        group: a group of options of a subcommand.
    """
    group.add_argument(
        "--streams",
        type=positive_int,
        metavar="N",
        help="batches searched at the same time, sharing the CPU's cores (default: with TensorFlow "
        "on a CPU as many as there are cores, otherwise 1)",
    )


def add_batch_options(
    parser: argparse.ArgumentParser,
    choices: Sequence[str],
    default: str,
    note: str = "",
    searches: bool = True,
) -> None:
    """Adds `--batch-size`, `--streams` to a command that searches, and `--long-lines`.

    Args:
        parser: parser of a subcommand.
        choices: what may become of a line that is too long, some of split, truncate, error.
        default: what the help calls the default.
        note: what the help says besides.
        searches: whether the command searches.
    """
    group = parser.add_argument_group("batches")
    add_batch_size(group)
    if searches:
        add_streams(group)
    group.add_argument(
        "--long-lines",
        choices=choices,
        metavar="HOW",
        help="what becomes of a source line that is longer than the model can take. "
        + "; ".join(_WHAT_HAPPENS[name] for name in choices)
        + f" (default: {default}){note}",
    )


def report_split(translator, num_lines: int) -> None:
    """Says how many lines were translated in parts.

    Args:
        translator: the translator.
        num_lines: number of lines in all.
    """
    if translator.num_split:
        say(f"split {translator.num_split:,} of {num_lines:,} lines and joined the answers")


def check_lengths(
    translator, lines: Sequence[str], name: str, first: int = 1, advice: str = _ADVICE
) -> None:
    """Raises if a line is longer than the model can read: half a translation is a wrong one.

    Args:
        translator: the translator.
        lines: source lines.
        name: the file's name, for the error.
        first: number of the first line.
        advice: what the error tells to do.

    Raises:
        UserError: naming the first such line.
    """
    ids = translator.source_tokenizer.encode_batch(lines)
    _check_lengths(ids, translator.max_source_length, name, first, advice)


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
