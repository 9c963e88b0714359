"""What the subcommands' parsers share: one-line errors, number types, common groups of options."""

import argparse
import dataclasses
import textwrap
from typing import NoReturn

USAGE_ERROR = 2

TOKENIZE_CHOICES = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs but keeps indented lines (the examples) as they were written."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=100)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in textwrap.dedent(text).strip().split("\n\n"):
            if any(line.startswith(" ") for line in paragraph.splitlines()):
                paragraphs.append(textwrap.indent(paragraph, indent))
            else:
                paragraphs.append(super()._fill_text(paragraph, width, indent))
        return "\n\n".join(paragraphs)


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line, and whose help keeps examples in shape."""

    def __init__(self, **options):
        super().__init__(formatter_class=_HelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())
        self.exit(USAGE_ERROR, f"{self.prog}: error: {line} (see `{self.prog} --help`)\n")


def add_command(
    commands: argparse._SubParsersAction, name: str, summary: str, description: str, example: str
) -> CommandParser:
    """Adds a subcommand whose help ends with an example.

    Args:
        commands: what `parser.add_subparsers` returned.
        name: name of the subcommand.
        summary: one line for the list of commands.
        description: what a newcomer should know, in paragraphs.
        example: command lines, shown as they are.

    Returns:
        The parser of the subcommand.
    """
    example = textwrap.indent(textwrap.dedent(example).strip("\n"), "  ")
    return commands.add_parser(
        name, help=summary, description=description, epilog=f"example:\n\n{example}"
    )


def _number(text: str, kind: type, allowed: str, accepts) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not accepts(value):
        raise argparse.ArgumentTypeError(f"expected {allowed}. Received: {text!r}")
    return value


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    return _number(text, int, "a whole number of at least 1", lambda value: value >= 1)


def positive_ints(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, separated by commas."""
    return tuple(positive_int(part.strip()) for part in text.split(","))


def non_negative_int(text: str) -> int:
    """A whole number of at least 0."""
    return _number(text, int, "a whole number of at least 0", lambda value: value >= 0)


def random_seed(text: str) -> int:
    """A seed that NumPy takes too: a whole number of 32 bits."""
    return _number(
        text, int, "a whole number from 0 to 4294967295", lambda value: 0 <= value < 2**32
    )


def positive_float(text: str) -> float:
    """A finite number above 0."""
    return _number(text, float, "a number above 0", lambda value: 0 < value < float("inf"))


def non_negative_float(text: str) -> float:
    """A finite number of at least 0."""
    return _number(text, float, "a number of at least 0", lambda value: 0 <= value < float("inf"))


def rate(text: str) -> float:
    """A share from 0 up to, but not including, 1."""
    return _number(text, float, "a number from 0 to below 1", lambda value: 0 <= value < 1)


def add_model_option(group, **options) -> None:
    """Adds `--model`, which may be given several times: a list, as `Translator.load` takes it.

    Args:
        group: a group of options of a subcommand.
        **options: further arguments of `add_argument`.
    """
    group.add_argument(
        "--model",
        action="append",
        metavar="DIR",
        help="model directory; given several times, the models, of one vocabulary, answer together "
        "as an average, with the settings of the first",
        **options,
    )


def add_model_and_files(parser: argparse.ArgumentParser, done: str):
    """Adds the options of a command that answers line by line: `--model`, `--input`, `--output`.

    Args:
        parser: parser of a subcommand.
        done: what has then happened to the lines, such as "translated".

    Returns:
        The group of options.
    """
    group = parser.add_argument_group("model and files")
    add_model_option(group, required=True)
    group.add_argument(
        "--input",
        metavar="FILE",
        help="UTF-8 text, one sentence a line, .gz too, or a pipe (default: standard input)",
    )
    group.add_argument(
        "--output",
        metavar="FILE",
        help=f"appears when everything is {done}, .gz too (default: standard output, as it comes)",
    )
    return group


def add_search_options(parser: argparse.ArgumentParser, n_best: bool = True) -> None:
    """Adds the options of beam search, each falling back to the model's own setting.

    Args:
        parser: parser of a subcommand.
        n_best: whether `--n-best` is offered.
    """
    group = parser.add_argument_group("search")
    group.add_argument(
        "--beam-size",
        type=positive_int,
        metavar="N",
        help="number of hypotheses followed at once; 1 is greedy (default: the model's recipe)",
    )
    group.add_argument(
        "--length-penalty",
        type=non_negative_float,
        metavar="ALPHA",
        help="exponent of the length penalty ((5+length)/6)^ALPHA; larger gives longer answers, "
        "0 none (default: the model's recipe)",
    )
    if n_best:
        group.add_argument(
            "--n-best",
            type=positive_int,
            metavar="N",
            help="number of answers per line, at most the beam size (default: only the best)",
        )


def beam_search(arguments: argparse.Namespace, default):
    """The search asked for by `add_search_options`, on top of the model's own.

    Args:
        arguments: parsed arguments.
        default: the translator's search, whose settings stand where no option was given.

    Returns:
        A `keras_transformer.decoding.BeamSearch`, or `default` if no option was given.

    Raises:
        ValueError: if more answers are asked for than the beam holds.
    """
    from keras_transformer.decoding import BeamSearch

    options = {
        name: getattr(arguments, name, None) for name in ("beam_size", "length_penalty", "n_best")
    }
    options = {name: value for name, value in options.items() if value is not None}
    if not options:
        return default
    if isinstance(default, BeamSearch):
        return dataclasses.replace(default, **options)
    return BeamSearch(**options)


def with_seed_offset(search, offset: int):
    """Gives a search that draws at random other numbers for each chunk of lines.

    Args:
        search: any search.
        offset: the number of batches before: a call takes a seed for each of its own.

    Returns:
        A search of the same kind.
    """
    if not hasattr(search, "seed"):
        return search
    return dataclasses.replace(search, seed=(search.seed + offset) % 2**31)


CONSTRAINT_OPTIONS = (
    "--min-length",
    "--no-repeat-ngram",
    "--repetition-penalty",
    "--suppress-unknown",
)


def is_given(arguments: argparse.Namespace, option: str) -> bool:
    """Returns whether an option without a default, or a flag, was given.

    Args:
        arguments: parsed arguments.
        option: as on the command line, `"--beam-size"`.
    """
    value = getattr(arguments, option.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False


def add_constraint_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of what answers may look like, on top of the model's own constraints.

    Args:
        parser: parser of a subcommand.
    """
    group = parser.add_argument_group("constraints")
    group.add_argument(
        "--min-length",
        type=positive_int,
        metavar="N",
        help="fewest subwords of an answer, the end of the sentence counted as one",
    )
    group.add_argument(
        "--no-repeat-ngram",
        type=positive_int,
        metavar="N",
        help="no sequence of N subwords comes twice in an answer; 3 or 4 against loops",
    )
    group.add_argument(
        "--repetition-penalty",
        type=positive_float,
        metavar="P",
        help="multiply the log-probability of each subword that an answer has already by P; above "
        "1 against repetition",
    )
    group.add_argument(
        "--suppress-unknown", action="store_true", help="no answer has the unknown token"
    )


def constrain_search(arguments: argparse.Namespace, search):
    """The search with the constraints asked for by `add_constraint_options`.

    Args:
        arguments: parsed arguments.
        search: a search; of a kind of constraint that it has already, the option counts.

    Returns:
        A search of the same kind.
    """
    from keras_transformer.data.special_tokens import UNK_ID
    from keras_transformer.decoding import (
        MinimumLength,
        NoRepeatNgrams,
        RepetitionPenalty,
        SuppressTokens,
    )

    asked = []
    if arguments.min_length is not None:
        asked.append(MinimumLength(arguments.min_length))
    if arguments.no_repeat_ngram is not None:
        asked.append(NoRepeatNgrams(arguments.no_repeat_ngram))
    if arguments.repetition_penalty is not None:
        asked.append(RepetitionPenalty(arguments.repetition_penalty))
    # Other tokens that the model's own search suppresses stay so.
    replaced = tuple(map(type, asked))
    if arguments.suppress_unknown:
        asked.append(SuppressTokens([UNK_ID]))
    if not asked:
        return search
    kept = [one for one in search.constraints if not isinstance(one, replaced)]
    return dataclasses.replace(search, constraints=(*kept, *asked))
