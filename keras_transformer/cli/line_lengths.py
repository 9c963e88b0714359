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
    tokenizer: Any,
    lines: Sequence[str],
    limit: int,  # maximum number of subwords, with the end of the sentence
    name: str,  # of the file
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
