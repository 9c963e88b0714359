"""`Option`: a field of settings on the command line, in TOML files and in the documentation."""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import docstring_parser

from keras_transformer.settings.base import (
    Metavar,
    Settings,
    allowed_values,
    check_value,
    choices_of,
    plain_type,
    settings_fields,
    type_of,
)

_METAVARS = {int: "N", float: "NUMBER", str: "NAME"}


@dataclasses.dataclass(frozen=True)
class Option:
    """A field of settings as an option."""

    name: str  # in a TOML file; with dashes on the command line
    type: Any  # of the field, with its limits
    default: Any
    text: str  # the meaning, without a capital and a full stop
    unset: str | None = None  # the meaning of None

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def shown_default(self) -> Any:
        """The default in the help, None if there is nothing to show."""
        default = self.unset if self.default is None else self.default
        return str(default).lower() if isinstance(default, bool) else default


def options_of(settings: type[Settings]) -> dict[str, Option]:
    """Returns an option for each field of settings, by the name of the field.

    The texts are the `Args` of the class; their end `; None for ...` says what None stands for.
    """
    options = {}
    parsed = docstring_parser.parse(settings.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE)
    texts = {entry.arg_name: entry.description or "" for entry in parsed.params}
    for name, field in settings_fields(settings).items():
        text, _, unset = " ".join(texts.get(name, "").split()).partition("; None for ")
        options[name] = Option(
            name,
            type_of(field),
            field.get_default(call_default_factory=True),
            text[:1].lower() + text[1:].removesuffix("."),
            unset.removesuffix(".") or None,
        )
    return options


def value_parser(annotation: Any) -> Callable[[str], Any]:
    """Returns the function that makes a value of a type from the text of an option."""
    kind, _ = plain_type(annotation)
    items = [plain_type(item)[0] for item in get_args(kind)]  # of a tuple

    def parse(text):
        try:
            if items:
                number = int if items[0] is int else str
                return check_value(annotation, tuple(map(number, text.split(","))))
            return check_value(annotation, kind(text))
        except ValueError:
            rule = f"expected {allowed_values(annotation)}"
            raise argparse.ArgumentTypeError(f"{rule}. Received: {text!r}") from None

    return parse


def add_option(group: argparse._ActionsContainer, option: Option) -> None:
    """Adds an option to a group of a parser; its value is None if it is not given."""
    kind, metadata = plain_type(option.type)
    default = "" if option.shown_default is None else f" (default: {option.shown_default})"
    settings: dict[str, Any] = {"help": (option.text + default).replace("%", "%%")}
    [metavar, *_] = [x.name for x in metadata if isinstance(x, Metavar)] + [_METAVARS.get(kind)]
    if kind is bool:
        settings |= {"action": argparse.BooleanOptionalAction}
    elif choices := choices_of(option.type):
        settings |= {"choices": choices}
    elif get_args(kind)[:1] == (str,):  # may be given several times
        settings |= {"action": "append", "metavar": metavar}
    else:
        settings |= {"type": value_parser(option.type), "metavar": metavar}
    group.add_argument(option.flag, **settings)
