"""The parser of commands, with one-line errors, and options that several commands share."""

import argparse
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NoReturn

from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.settings.setting import COUNT, POSITIVE, SWITCH, Setting, declarations

USAGE_ERROR = 2


# Rules for the values of options, by metavar.
_RULES = {"N": COUNT, "P": POSITIVE, "M": POSITIVE, "GB": POSITIVE}
_LAYOUT = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28, width=100)


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` with one-line errors, whose help keeps the line breaks of texts."""

    def __init__(self, **options):
        super().__init__(formatter_class=_LAYOUT, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Prints a message on one line and exits."""
        line = " ".join(message.split())
        self.exit(USAGE_ERROR, f"{self.prog}: error: {line} (see `{self.prog} --help`)\n")

    def flags(self) -> set[str]:
        """Returns the options, each by its first name."""
        return {action.option_strings[0] for action in self._actions if action.option_strings}


def add_options(group: argparse._ActionsContainer, texts: Mapping[str, str], **common: Any) -> None:
    """Adds options such as `{"--last N": "help"}`, or `{"--plan": "help"}` for a switch."""
    for option, text in texts.items():
        flag, *metavar = option.split()
        kind: dict[str, Any] = {"metavar": metavar[0]} if metavar else {"action": "store_true"}
        if metavar and metavar[0] in _RULES:
            kind["type"] = _RULES[metavar[0]]
        group.add_argument(flag, help=text, **kind, **common)


def add_setting(group: argparse._ActionsContainer, one: Setting) -> None:
    """Adds the option of a setting to a group of a parser; None means that it is not given."""
    default = one.unset if one.default is None else one.default
    if isinstance(default, bool):
        default = str(default).lower()
    text = one.text + (f" (default: {default})" if default is not None else "")
    if one.rule is SWITCH:
        action = argparse.BooleanOptionalAction
        group.add_argument(one.flag, action=action, default=None, help=text)
        return
    values = {"choices": one.rule.choices} if one.rule.choices else {"type": one.rule}
    metavar = one.metavar or one.rule.metavar
    group.add_argument(one.flag, **values, metavar=metavar, help=text.replace("%", "%%"))


def add_model_option(group: argparse._ActionsContainer, **options) -> None:
    """Adds `--model`, which may be given several times; its value is a list of directories."""
    text = (
        "model directory; several models of one vocabulary answer together, by their average and "
        "with the settings of the first"
    )
    add_options(group, {"--model DIR": text}, action="append", **options)


def add_search_options(parser: argparse.ArgumentParser, n_best: bool = True) -> None:
    """Adds the options of beam search, which default to the model's own."""
    group = parser.add_argument_group("search")
    recipe = declarations(TrainingRecipe)
    for name in ("beam_size", "length_penalty"):
        add_setting(group, dataclasses.replace(recipe[name], default="the model's"))
    options = {
        "--patience P": "stop a sentence when P times the beam size hypotheses have ended: 1 is "
        "faster, and may change an answer (default: search until no answer could become better)"
    }
    if n_best:
        text = "number of answers per line, at most the beam size (default: only the best)"
        options["--n-best N"] = text
    add_options(group, options)


def is_given(arguments: argparse.Namespace, option: str) -> bool:
    """Returns whether an option without a default, such as `"--beam-size"`, was given."""
    value = getattr(arguments, option.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False


# Options of constraints that take a number, and the classes of the constraints.
_CONSTRAINTS = {
    "min_length": "MinimumLength",
    "no_repeat_ngram": "NoRepeatNgrams",
    "repetition_penalty": "RepetitionPenalty",
}
_FLAGS = ("--" + name.replace("_", "-") for name in _CONSTRAINTS)
CONSTRAINT_OPTIONS = (*_FLAGS, "--suppress-unknown")


def add_constraint_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of constraints, which are added to the model's own constraints."""
    group = parser.add_argument_group("constraints")
    options = {
        "--min-length N": "minimum number of subwords in an answer, its end included",
        "--no-repeat-ngram N": "no sequence of N subwords may occur twice in an answer; 3 or 4 "
        "prevents loops",
        "--repetition-penalty P": "multiply the log-probability of each subword that occurs in the "
        "answer already by P; a number above 1 prevents repetition",
        "--suppress-unknown": "no answer may have the unknown token",
    }
    add_options(group, options)


def choose_search(arguments: argparse.Namespace, search: Any) -> Any:
    """Returns a model's search, changed by the options; a constraint replaces one of its kind."""
    from keras_transformer import decoding
    from keras_transformer.data.tokenizer import UNK_ID

    given = {name: value for name, value in vars(arguments).items() if value is not None}
    names = ("beam_size", "length_penalty", "patience", "n_best")
    options = {name: given[name] for name in names if name in given}
    if options and isinstance(search, decoding.BeamSearch):
        search = dataclasses.replace(search, **options)
    elif options:
        search = decoding.BeamSearch(**options, constraints=search.constraints)
    asked = [getattr(decoding, kind)(given[n]) for n, kind in _CONSTRAINTS.items() if n in given]
    # If the search suppresses other tokens, they stay suppressed.
    replaced = tuple(map(type, asked))
    if given.get("suppress_unknown"):
        asked.append(decoding.SuppressTokens((UNK_ID,)))
    if not asked:
        return search
    kept = [one for one in search.constraints if not isinstance(one, replaced)]
    return dataclasses.replace(search, constraints=(*kept, *asked))


def add_batch_options(
    parser: argparse.ArgumentParser, searches: bool = True
) -> argparse._ArgumentGroup:
    """Adds `--batch-size`; if the command searches, also `--streams` and `--precision`."""
    group = parser.add_argument_group("batches")
    default = "128, or fewer with more than two beams" if searches else "%(default)s"
    text = f"number of sentences computed at once (default: {default})"
    add_options(group, {"--batch-size N": text}, default=None if searches else 32)
    if searches:
        text = (
            "number of batches searched at the same time, which share the CPU's cores "
            "(default: with TensorFlow on a CPU the number of cores, otherwise 1)"
        )
        add_options(group, {"--streams N": text})
        text = (
            "type to compute in, one of float32, bfloat16 and auto, the one that this machine "
            "multiplies faster; bfloat16 changes some answers (default: float32)"
        )
        add_options(group, {"--precision TYPE": text}, choices=("float32", "bfloat16", "auto"))
    return group
