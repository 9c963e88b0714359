"""`setting`, which declares a field, and `FrozenSettings`, the base class of all settings."""

import argparse
import dataclasses
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True)
class Rule:
    """The values that a setting may have.

    A rule can be the `type` of an `argparse` option: called with a text, it returns the value.
    """

    kind: type
    words: str  # complete the sentence "The value must be ..."
    accepts: Callable[[Any], bool] = lambda value: True  # for values of this type
    metavar: str | None = None  # in the help
    choices: tuple[str, ...] | None = None  # all values, if they are few
    parse: Callable[[str], Any] | None = None  # converts text to a value; None for `kind`

    def allows(self, value: Any) -> bool:
        """Returns whether a value is allowed. An int is also a float; a bool is not a number."""
        kinds = (int, float) if self.kind is float else self.kind
        if not isinstance(value, kinds) or isinstance(value, bool) != (self.kind is bool):
            return False
        is_finite = self.kind is not float or abs(value) <= sys.float_info.max
        return is_finite and bool(self.accepts(value))

    def __call__(self, text: str) -> Any:
        try:
            value = (self.parse or self.kind)(text)
        except ValueError:
            value = None
        if not self.allows(value):
            raise argparse.ArgumentTypeError(f"expected {self.words}. Received: {text!r}")
        return value


def choice(metavar: str, *choices: str) -> Rule:
    """Returns the rule of a setting with few values."""
    words = f"one of {', '.join(map(repr, choices))}"
    return Rule(str, words, choices.__contains__, metavar, choices)


SWITCH = Rule(bool, "True or False")
TEXT = Rule(str, "a string")
MAPPING = Rule(dict, "a dict")
COUNT = Rule(int, "a whole number of at least 1", lambda value: value >= 1, "N")
COUNT_OR_ZERO = Rule(int, "a whole number of at least 0", lambda value: value >= 0, "N")
# Ids and shapes are int32.
SIZE = Rule(int, f"a whole number from 1 to {2**31 - 1}", lambda value: 1 <= value < 2**31, "N")
# Each layer takes time to build, whatever its size.
LAYERS = Rule(int, "a whole number from 1 to 1000", lambda value: 1 <= value <= 1000, "N")
# A cache has room for the whole window, whatever the length.
WINDOW = Rule(int, f"a whole number from 1 to {2**16}", lambda value: 1 <= value <= 2**16, "N")
# NumPy's generators take no larger seed.
SEED = Rule(int, f"a whole number from 0 to {2**32 - 1}", lambda value: 0 <= value < 2**32, "N")
POSITIVE = Rule(float, "a number above 0", lambda value: value > 0)
NON_NEGATIVE = Rule(float, "a number of at least 0", lambda value: value >= 0)
RATE = Rule(float, "a number from 0 to below 1", lambda value: 0 <= value < 1, "RATE")
COUNTS = Rule(
    tuple,
    "whole numbers of at least 1",
    lambda values: values and all(map(COUNT.allows, values)),
    "N,N",
    parse=lambda text: tuple(int(part) for part in text.split(",")),
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting, for the documentation, the command line and TOML files."""

    name: str  # on the command line (with dashes) and in a TOML file
    default: Any
    text: str  # its meaning, without a capital and a full stop
    rule: Rule
    metavar: str | None = None  # in the help; None for the rule's
    unset: str | None = None  # the meaning of None
    table: str | None = None  # TOML table and group of the help; None if it is in neither
    may_change: bool = False  # whether it may differ when a training is resumed

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")


def setting(default: Any, text: str, rule: Rule = TEXT, **options: Any) -> Any:
    """Returns a dataclass field with a `Setting`, which defines its docstring, option and check.

    If `default` is a type, it is called to make each default; `dataclasses.MISSING` is no default.
    With a bool default, the rule is `SWITCH`. Pass `name` only if it differs from the field's.
    """
    rule = SWITCH if isinstance(default, bool) else rule
    values = {"default_factory": default} if isinstance(default, type) else {"default": default}
    declared = Setting(options.pop("name", ""), default, text, rule, **options)
    return dataclasses.field(**values, metadata={"setting": declared})


def declarations(one: type) -> dict[str, Setting]:
    """Returns the settings that a class of `FrozenSettings` declares, by field name."""
    return {
        field.name: dataclasses.replace(declared, name=declared.name or field.name)
        for field in dataclasses.fields(one)
        if (declared := field.metadata.get("setting"))
    }


class FrozenSettings:
    """Base class of frozen dataclasses of settings; checks the values and converts them for JSON.

    `{settings}` in the docstring of a subclass is replaced by the list of its settings.
    """

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        declared = {
            name: field.metadata["setting"]
            for name, field in vars(cls).items()
            if isinstance(field, dataclasses.Field) and "setting" in field.metadata
        }
        # The indentation must be searched for, because Python 3.13 removes it.
        if place := re.search(r"^( *)\{settings\}$", cls.__doc__ or "", re.MULTILINE):
            rows = [_describe(name, one, place[1]) for name, one in declared.items()]
            cls.__doc__ = cls.__doc__.replace(place[0], "\n".join(rows))

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, declared = getattr(self, field.name), field.metadata.get("setting")
            if declared is None or (value is None and type(None) in typing.get_args(field.type)):
                continue
            # JSON has no tuples, and the caller may change a dict.
            kind = declared.rule.kind
            if isinstance(value, {tuple: list, dict: Mapping}.get(kind, ())):
                value = kind(value)
                object.__setattr__(self, field.name, value)
            if not declared.rule.allows(value):
                message = f"`{field.name}` must be {declared.rule.words}"
                raise ValueError(f"{message}. Received: {field.name}={value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict that JSON can hold."""
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings in a dict from `to_dict`.

        Args:
            values: A dict of fields; those left out keep their defaults.

        Raises:
            ValueError: If `values` is not a dict of fields, or a value is not allowed.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"{cls.__name__} is saved as a dict. Received: {values=}")
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(names))
        if unknown:
            rule = f"{cls.__name__} has no such setting; allowed are {', '.join(names)}"
            raise ValueError(f"{rule}. Received: {', '.join(unknown)}")
        return cls(**values)


def _describe(name: str, one: Setting, indent: str) -> str:
    """Returns the entry of a setting in the `Args` of a docstring."""
    unset = f"; None for {one.unset}" if one.unset else ""
    row = f"{name}: {one.text[0].upper()}{one.text[1:]}{unset}."
    return textwrap.fill(row, 100, initial_indent=indent, subsequent_indent=indent + "    ")
