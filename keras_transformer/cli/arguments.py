"""The parser of commands, with errors of one line, and groups of options that several have."""

import argparse
import dataclasses
import textwrap
from typing import Any, NoReturn

from keras_transformer.settings.setting import COUNT, POSITIVE, SWITCH, Setting, declarations
from keras_transformer.settings.training_recipe import TrainingRecipe

USAGE_ERROR = 2


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
        commands: Result of `parser.add_subparsers`.
        name: Name of the subcommand.
        summary: One line for the list of commands.
        description: Paragraphs for newcomers.
        example: Command lines, which are printed unchanged.

    Returns:
        The parser of the subcommand.
    """
    example = textwrap.indent(textwrap.dedent(example).strip("\n"), "  ")
    return commands.add_parser(
        name, help=summary, description=description, epilog=f"example:\n\n{example}"
    )


def add_setting(group: argparse._ActionsContainer, one: Setting) -> None:
    """Adds the option of a setting to a group of a parser; without the option it is None."""
    default = one.unset if one.default is None else one.default
    if isinstance(default, bool):
        default = str(default).lower()
    text = one.text + (f" (default: {default})" if default is not None else "")
    if one.rule is SWITCH:
        group.add_argument(
            one.flag, action=argparse.BooleanOptionalAction, default=None, help=text
        )
        return
    values = {"choices": one.rule.choices} if one.rule.choices else {"type": one.rule}
    metavar = one.metavar or one.rule.metavar
    group.add_argument(one.flag, **values, metavar=metavar, help=text.replace("%", "%%"))


def add_model_option(group: argparse._ActionsContainer, **options) -> None:
    """Adds `--model`, which may be given several times: a list, as `Translator.load` takes it."""
    group.add_argument(
        "--model",
        action="append",
        metavar="DIR",
        help="model directory; several models of one vocabulary answer together, by their average "
        "and with the settings of the first",
        **options,
    )


def add_model_and_files(parser: argparse.ArgumentParser, done: str) -> argparse._ArgumentGroup:
    """Adds `--model`, `--input` and `--output` of a command that answers line by line.

    Args:
        parser: Parser of a subcommand.
        done: Participle of what the command does with lines, such as "translated".

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
        help=f"file for the answers, .gz too, which appears when all lines are {done} (default: "
        "standard output, line by line)",
    )
    return group


def add_search_options(parser: argparse.ArgumentParser, n_best: bool = True) -> None:
    """Adds the options of beam search, whose defaults are those of the model.

    Args:
        parser: Parser of a subcommand.
        n_best: Whether to offer `--n-best`.
    """
    group = parser.add_argument_group("search")
    recipe = declarations(TrainingRecipe)
    for name in ("beam_size", "length_penalty"):
        add_setting(group, dataclasses.replace(recipe[name], default="the model's"))
    if n_best:
        group.add_argument(
            "--n-best",
            type=COUNT,
            metavar="N",
            help="number of answers per line, at most the beam size (default: only the best)",
        )


def beam_search(arguments: argparse.Namespace, default: Any) -> Any:
    """Returns the search that `add_search_options` asks for.

    Args:
        arguments: Parsed arguments.
        default: The search of the model, whose settings hold where no option is given.

    Returns:
        A `BeamSearch`, or `default` if no option is given.

    Raises:
        ValueError: If more answers are asked for than the beam holds.
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


def with_seed_offset(search: Any, offset: int) -> Any:
    """Returns a search with another seed for each chunk of lines, if it samples.

    Args:
        search: Any search.
        offset: Number of batches before, each of which uses one seed.
    """
    if not hasattr(search, "seed"):
        return search
    return dataclasses.replace(search, seed=(search.seed + offset) % 2**31)


# The options of constraints with a number, by the name of their class.
_CONSTRAINTS = {
    "MinimumLength": Setting(
        "min_length", None, "minimum number of subwords in an answer, its end included", COUNT
    ),
    "NoRepeatNgrams": Setting(
        "no_repeat_ngram",
        None,
        "no sequence of N subwords may occur twice in an answer; 3 or 4 prevents loops",
        COUNT,
    ),
    "RepetitionPenalty": Setting(
        "repetition_penalty",
        None,
        "multiply the log-probability of each subword that occurs in the answer already by P; a "
        "number above 1 prevents repetition",
        POSITIVE,
        metavar="P",
    ),
}
CONSTRAINT_OPTIONS = (*(one.flag for one in _CONSTRAINTS.values()), "--suppress-unknown")


def is_given(arguments: argparse.Namespace, option: str) -> bool:
    """Returns whether an option without a default, such as `"--beam-size"`, was given."""
    value = getattr(arguments, option.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False


def add_constraint_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of constraints, which come on top of the model's own."""
    group = parser.add_argument_group("constraints")
    for one in _CONSTRAINTS.values():
        add_setting(group, one)
    group.add_argument(
        "--suppress-unknown", action="store_true", help="no answer may have the unknown token"
    )


def constrain_search(arguments: argparse.Namespace, search: Any) -> Any:
    """Returns a search with the constraints that `add_constraint_options` asks for.

    An option replaces the constraint of its kind that the search has already.
    """
    from keras_transformer import decoding
    from keras_transformer.data.special_tokens import UNK_ID

    numbers = {name: getattr(arguments, one.name) for name, one in _CONSTRAINTS.items()}
    asked = [getattr(decoding, name)(n) for name, n in numbers.items() if n is not None]
    # The search may suppress other tokens, which stay suppressed.
    replaced = tuple(map(type, asked))
    if arguments.suppress_unknown:
        asked.append(decoding.SuppressTokens([UNK_ID]))
    if not asked:
        return search
    kept = [one for one in search.constraints if not isinstance(one, replaced)]
    return dataclasses.replace(search, constraints=(*kept, *asked))


def add_batch_options(
    parser: argparse.ArgumentParser, searches: bool = True
) -> argparse._ArgumentGroup:
    """Adds `--batch-size`, and `--streams` to a command that searches; returns their group."""
    group = parser.add_argument_group("batches")
    group.add_argument(
        "--batch-size",
        type=COUNT,
        default=32,
        metavar="N",
        help="number of sentences computed at once (default: %(default)s)",
    )
    if searches:
        group.add_argument(
            "--streams",
            type=COUNT,
            metavar="N",
            help="number of batches searched at the same time, which share the CPU's cores "
            "(default: with TensorFlow on a CPU the number of cores, otherwise 1)",
        )
    return group
