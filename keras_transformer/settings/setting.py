"""`setting`, which declares a field, and `Settings`, the base class of all settings."""

import argparse
import copy
import dataclasses
import numbers
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self


@dataclasses.dataclass(frozen=True)
class Rule:
    """The values that a setting may have; called with a text, the `type` of an option."""

    kind: type
    words: str  # complete the sentence "The value must be ..."
    accepts: Callable[[Any], bool] = lambda value: True  # for values of this type
    metavar: str | None = None  # in the help
    choices: tuple[str, ...] | None = None  # all values, if they are few
    parse: Callable[[str], Any] | None = None  # converts text to a value; None for `kind`
    example: tuple = ()  # of a tuple, for TOML files

    def convert(self, value: Any) -> Any:
        """Returns a value as the rule's float, tuple or dict, as read from JSON or NumPy."""
        kinds = {float: numbers.Real, tuple: Iterable, dict: Mapping}.get(self.kind, ())
        unlike = (str, Mapping) if self.kind is tuple else bool
        if not isinstance(value, kinds) or isinstance(value, unlike):
            return value
        try:
            return self.kind(value)
        except OverflowError:  # a large int has no float
            return value

    def allows(self, value: Any) -> bool:
        """Returns whether a converted value is allowed. A bool is not a number."""
        if not isinstance(value, self.kind) or isinstance(value, bool) != (self.kind is bool):
            return False
        is_finite = not isinstance(value, float) or abs(value) <= sys.float_info.max
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


def number(lowest: float, highest: float) -> Rule:
    """Returns the rule of a number in a range, its ends included."""
    words = f"a number from {lowest:g} to {highest:g}"
    return Rule(float, words, lambda value: lowest <= value <= highest)


def _whole_number(lowest, highest):
    words = f"a whole number from {lowest} to {highest}"
    return Rule(int, words, lambda value: lowest <= value <= highest, "N")


SWITCH = Rule(bool, "True or False")
TEXT = Rule(str, "a string")
MAPPING = Rule(dict, "a dict")
COUNT = Rule(int, "a whole number of at least 1", lambda value: value >= 1, "N")
COUNT_OR_ZERO = Rule(int, "a whole number of at least 0", lambda value: value >= 0, "N")
# Ids and shapes are int32.
SIZE = _whole_number(1, 2**31 - 1)
# Tensors grow with the number of beams.
BEAMS = _whole_number(1, 2**12)
# Each layer takes time to build, whatever its size.
LAYERS = _whole_number(1, 1000)
# A cache has room for the whole window, whatever the length.
WINDOW = _whole_number(1, 2**16)
# NumPy's generators take no larger seed.
SEED = _whole_number(0, 2**32 - 1)
POSITIVE = Rule(float, "a number above 0", lambda value: value > 0)
NON_NEGATIVE = Rule(float, "a number of at least 0", lambda value: value >= 0)
RATE = Rule(float, "a number from 0 to below 1", lambda value: 0 <= value < 1, "RATE")
COUNTS = Rule(
    tuple,
    "whole numbers of at least 1",
    lambda values: values and all(map(COUNT.allows, values)),
    "N,N",
    parse=lambda text: tuple(map(int, text.split(","))),
    example=(1, 5, 10),
)
# An option that may be given several times.
TEXTS = Rule(tuple, "a list of strings", lambda values: values and all(map(TEXT.allows, values)))
_PARTS = ("encoder", "decoder", "embedding")
PARTS = Rule(
    tuple,
    "one or two of encoder, decoder and embedding",
    lambda names: 0 < len(names) < 3 and all(name in _PARTS for name in names),
    "PART,PART",
    parse=lambda text: tuple(text.split(",")),
    example=("encoder", "embedding"),
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


def declare_options(table: str, texts: Mapping[str, str]) -> tuple[Setting, ...]:
    """Returns the options of a table, from their texts by name and metavar.

    `{"tsv FILE": "pairs", "part SPLIT=train": "part of a set", "limit N": "number; None for all",
    "quiet": "no messages"}` declares a text, a text with a default, a count and a switch.
    """
    settings = []
    for option, text in texts.items():
        name, _, metavar = option.partition(" ")
        metavar, _, value = metavar.partition("=")
        text, _, unset = text.partition("; None for ")
        rule = COUNT if metavar == "N" else TEXT if metavar else SWITCH
        default = False if rule is SWITCH and not unset else value or None
        settings.append(Setting(name, default, text, rule, metavar or None, unset or None, table))
    return tuple(settings)


def setting(
    default: Any,
    rule: Rule = TEXT,
    name: str = "",
    metavar: str | None = None,
    table: str | None = None,
    may_change: bool = False,
) -> Any:
    """Returns a dataclass field with its check, and its option on the command line.

    A default that is a type is called to make each default; `dataclasses.MISSING` is no default. A
    bool has the rule `SWITCH`. `declarations` takes the text from the `Args` of the class.
    """
    rule = SWITCH if isinstance(default, bool) else rule
    values = {"default_factory": default} if isinstance(default, type) else {"default": default}
    declared = Setting(name, default, "", rule, metavar, None, table, may_change)
    return dataclasses.field(**values, metadata={"setting": declared})


def declarations(settings: type) -> dict[str, Setting]:
    """Returns the settings that a class of `Settings` declares, by field name, with their texts."""
    settings_by_name, texts = {}, _arguments(settings.__doc__ or "")
    for field in dataclasses.fields(settings):
        if declared := field.metadata.get("setting"):
            text, _, unset = texts.get(field.name, "").partition("; None for ")
            settings_by_name[field.name] = dataclasses.replace(
                declared,
                name=declared.name or field.name,
                text=text[:1].lower() + text[1:],
                unset=unset or None,
            )
    return settings_by_name


def _arguments(docstring):
    """Returns the texts in the `Args` of a docstring by name, without the full stops."""
    section = re.split(r"\n *\n", docstring.partition("Args:\n")[2])[0]
    indent = len(section) - len(section.lstrip())
    rows = re.split(rf"(?:^|\n) {{{indent}}}(?! )", section)[1:]
    pairs = (" ".join(row.split()).partition(": ") for row in rows)
    return {name: text.removesuffix(".") for name, _, text in pairs}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base class of frozen dataclasses of settings; checks the values and converts them for JSON.

    `class Search(Settings, family="search")` is a family of settings, whose dicts have a `"name"`;
    `class BeamSearch(Search, name="beam")` is a member.
    """

    _family: ClassVar[str | None] = None
    _members: ClassVar[dict[str, type]] = {}
    _name: ClassVar[str | None] = None

    def __init_subclass__(
        cls, family: str | None = None, name: str | None = None, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if family is not None:
            cls._family, cls._members = family, {}
        if name is not None:
            cls._name, cls._members[name] = name, cls

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, declared = getattr(self, field.name), field.metadata.get("setting")
            if declared is None or (value is None and type(None) in typing.get_args(field.type)):
                continue
            converted = declared.rule.convert(value)
            if not declared.rule.allows(converted):
                rule = f"`{field.name}` must be {declared.rule.words}"
                raise ValueError(f"{rule}. Received: {field.name}={value!r}")
            object.__setattr__(self, field.name, converted)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict that JSON can hold, in a family with the `"name"`."""
        values: dict[str, Any] = {} if self._name is None else {"name": self._name}
        for field in dataclasses.fields(self):
            value = copy.deepcopy(getattr(self, field.name))
            if isinstance(value, tuple):
                value = [item.to_dict() if isinstance(item, Settings) else item for item in value]
            values[field.name] = value
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings in a dict from `to_dict`, or raises a `ValueError`.

        Args:
            values: A dict of fields; those left out keep their defaults.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"{cls.__name__} is saved as a dict. Received: {values=}")
        values = dict(values)
        if cls._family is not None:
            name = values.pop("name", None)
            if name not in tuple(cls._members):  # A damaged file may have a list or a dict.
                rule = f"The name of a {cls._family} must be one of {list(cls._members)}"
                raise ValueError(f"{rule}. Received: {name=}")
            cls = cls._members[name]
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - set(fields)):
            rule = f"{cls.__name__} has no such setting; allowed are {', '.join(fields)}"
            raise ValueError(f"{rule}. Received: {', '.join(unknown)}")
        for name in fields.keys() - values.keys():
            if fields[name].default is fields[name].default_factory is dataclasses.MISSING:
                rule = f"{cls.__name__} must have the setting {name!r}"
                raise ValueError(f"{rule}. Received: {sorted(values)}")
        return cls(**values)


def check_member(family: type[Settings], value: Any) -> None:
    """Raises a `ValueError` unless `value` is of a class that is a member of a family."""
    members = family._members.values()
    if type(value) not in members:
        names = [member.__name__ for member in members]
        rule = f"A {family._family} that can be saved must be one of {names}"
        raise ValueError(f"{rule}. Received: {family._family}={value!r}")
