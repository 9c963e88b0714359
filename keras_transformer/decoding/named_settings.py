"""Settings that are saved as a dict with the registered name of their class."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self


class NamedSettings:
    """Base of families of frozen dataclasses, such as the searches.

    `class Search(NamedSettings, kind="search")` declares a family. `class BeamSearch(Search,
    name="beam")` declares a member, and registers it by its name.
    """

    def __init_subclass__(
        cls, kind: str | None = None, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if kind is not None:
            cls._members, cls._kind = {}, kind
        elif name is not None:
            cls._members[name], cls._name = cls, name

    def to_dict(self) -> dict:
        """Returns the fields as a dict that JSON can hold, with the `"name"`."""
        fields = dataclasses.fields(self)
        return {"name": self._name, **{field.name: getattr(self, field.name) for field in fields}}

    @classmethod
    def from_dict(cls, settings: Mapping) -> Self:
        """Returns the member of the family that `to_dict` described.

        Args:
            settings: The dict; fields that are left out keep their defaults.
        """
        settings = dict(settings)
        name = settings.pop("name", None)
        if not isinstance(name, str) or name not in cls._members:
            rule = f"The name of a {cls._kind} must be one of {list(cls._members)}"
            raise ValueError(f"{rule}. Received: {name=}")
        try:
            return cls._members[name](**settings)
        except TypeError as error:
            rule = f"The settings of the {cls._kind} {name!r} must be its arguments: {error}"
            raise ValueError(f"{rule}. Received: settings={sorted(settings)!r}") from error


def dict_of(family: type[NamedSettings], member: Any) -> dict:
    """Returns `member.to_dict()`, or raises a `ValueError` if it is not of the family."""
    if type(member) not in family._members.values():
        names = [one.__name__ for one in family._members.values()]
        rule = f"A {family._kind} that can be saved must be one of {names}"
        raise ValueError(f"{rule}. Received: {family._kind}={member!r}")
    return member.to_dict()
