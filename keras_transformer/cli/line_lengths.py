"""Lines that are longer than the model reads."""

import argparse
from collections.abc import Sequence
from typing import Any

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.progress import say
from keras_transformer.errors import UserError

_ACTIONS = {
    "split": "split translates it in parts, of whole sentences where possible, and joins the "
    "answers; it also splits lines of more sentences than the model was trained on",
    "truncate": "truncate reads only its beginning",
    "error": "error stops before anything is computed",
}
_ADVICE = "split the line, or use --long-lines split or truncate"


def add_long_lines(
    group: argparse._ArgumentGroup, choices: Sequence[str], default: str, note: str = ""
) -> None:
    """Adds `--long-lines` with some of the choices; `default` and `note` are words of the help."""
    actions = "; ".join(_ACTIONS[name] for name in choices)
    text = f"treatment of a source line that is longer than the model reads: {actions} (default: "
    add_options(group, {"--long-lines HOW": f"{text}{default}){note}"}, choices=choices)


def report_split(translator: Any, num_lines: int) -> None:
    """Prints the number of lines that were translated in parts, if there are any."""
    if translator.num_split:
        say(f"split {translator.num_split:,} of {num_lines:,} lines and joined the answers")


def check_lengths(
    translator: Any, lines: Sequence[str], name: str, first: int = 1, advice: str = _ADVICE
) -> None:
    """Raises a `UserError` that names the first source line longer than the model reads, if any.

    Args:
        translator: The `Translator`.
        lines: Source lines.
        name: The file's name, for the error.
        first: Number of the first line.
        advice: Advice in the error.
    """
    ids = translator.source_tokenizer.encode_batch(lines)
    _check_lengths(ids, translator.max_source_length, name, first, advice)


def check_target_lengths(translator: Any, lines: Sequence[str], name: str) -> None:
    """Raises if a given translation is longer than the model has positions; see `check_lengths`."""
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
