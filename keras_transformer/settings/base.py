"""`Settings`: frozen dataclasses that pydantic checks, with errors of one line."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
_Item = TypeVar("_Item")
_Class = TypeVar("_Class", bound=type)


class Allowed(NamedTuple):
    """The values that a type allows, if the type alone does not say it."""

    words: str  # complete "The value must be ..."


class Metavar(NamedTuple):
    """The name of a value in the help of a command."""

    name: str


# Types of fields. The value may be a list where the type is `Items`.
Items = Annotated[tuple[_Item, ...], Strict(False)]
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
# Ids and shapes are int32.
Size = Annotated[int, Ge(1), Le(2**31 - 1)]
# NumPy's generators take no larger seed.
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Rate = Annotated[float, Ge(0), Lt(1)]
Counts = Annotated[Items[Count], Len(1), Allowed("whole numbers of at least 1"), Metavar("N,N")]
Texts = Annotated[Items[str], Len(1), Allowed("a list of strings")]
File = Annotated[str, Metavar("FILE")]
Folder = Annotated[str, Metavar("DIR")]
Changes = Annotated[Mapping[str, Any], AfterValidator(dict), Allowed("a dict")]
# Marks a field that may differ when a training is resumed.
MAY_CHANGE = "may change"


def plain_type(annotation: Any, metadata: tuple = ()) -> tuple[Any, tuple]:
    """Returns a type without `Annotated` and without None, and its metadata."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return plain_type(arguments[0], (*metadata, *arguments[1:]))
    if type(None) in arguments:
        [other] = set(arguments) - {type(None)}
        return plain_type(other, metadata)
    return annotation, metadata


def choices_of(annotation: Any) -> tuple[str, ...]:
    """Returns the values of a type if they are few, otherwise none."""
    kind, _ = plain_type(annotation)
    return get_args(kind) if get_origin(kind) is Literal else ()


def allowed_values(annotation: Any) -> str:
    """Returns the values of a type in words that complete "The value must be ..."."""
    kind, metadata = plain_type(annotation)
    for note in metadata:
        if isinstance(note, Allowed):
            return note.words
    if choices := choices_of(annotation):
        return f"one of {', '.join(map(repr, choices))}"
    names = {bool: "True or False", str: "a string", int: "a whole number", float: "a number"}
    words = names.get(kind, f"of the type {kind}")
    keys = ("ge", "gt", "le", "lt")
    limits = {key: getattr(note, key) for note in metadata for key in keys if hasattr(note, key)}
    match limits:
        case {"ge": lowest, "lt": end}:
            return f"{words} from {lowest} to below {end}"
        case {"ge": lowest, "le": highest}:
            return f"{words} from {lowest} to {highest}"
    texts = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    return " ".join([words, *(f"{texts[key]} {limit}" for key, limit in limits.items())])


def check_value(annotation: Any, value: Any) -> Any:
    """Returns a value as a field of this type would hold it, or raises a `ValueError`."""
    return TypeAdapter(annotation, config=_CONFIG).validate_python(value)


def settings_fields(settings: Any) -> dict[str, FieldInfo]:
    """Returns the fields of a class of settings by name."""
    return getattr(settings, "__pydantic_fields__", {})  # `Settings` itself has none.


def type_of(field: FieldInfo) -> Any:
    """Returns the type of a field, with its limits."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


@dataclass_transform(frozen_default=True, field_specifiers=(Field, dataclasses.field))
def settings_dataclass(cls: _Class) -> _Class:
    """Makes a subclass of `Settings` a frozen dataclass that checks its fields."""
    checked: Any = dataclass(cls, frozen=True, config=_CONFIG)
    signature, check = inspect.signature(checked), checked.__init__

    @functools.wraps(check)
    def __init__(self, *args, **values):
        given = signature.bind(*args, **values).arguments
        try:
            check(self, **given)
        except ValidationError as error:
            raise _plain_error(checked, error, given) from None

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [itself, *signature.parameters.values()]
    __init__.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    checked.__init__ = __init__
    return checked


def _plain_error(settings, error, given):
    """Returns an error of pydantic as one that says in one line what is allowed."""
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return first["ctx"]["error"]  # that of `__post_init__`
    name = first["loc"][0]
    rule = f"`{name}` must be {allowed_values(type_of(settings_fields(settings)[name]))}"
    return ValueError(f"{rule}. Received: {name}={given[name]!r}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base class of settings: goes to and from a dict that JSON can hold.

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

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict that JSON can hold, in a family with the `"name"`."""
        values: dict[str, Any] = {} if self._name is None else {"name": self._name}
        for name in settings_fields(type(self)):
            value = copy.deepcopy(getattr(self, name))
            if isinstance(value, tuple):
                value = [item.to_dict() if isinstance(item, Settings) else item for item in value]
            values[name] = value
        return values

    def fixed(self) -> dict[str, Any]:
        """Returns the fields that may not differ when a training is resumed, as in `to_dict`."""
        fields, values = settings_fields(type(self)), self.to_dict()
        return {name: values[name] for name in fields if MAY_CHANGE not in fields[name].metadata}

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
        fields = settings_fields(cls)
        if unknown := sorted(set(values) - set(fields)):
            rule = f"{cls.__name__} has no such setting; allowed are {', '.join(fields)}"
            raise ValueError(f"{rule}. Received: {', '.join(unknown)}")
        for name in fields.keys() - values.keys():
            if fields[name].is_required():
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
