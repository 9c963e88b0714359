"""One setting of a command that may stand on the command line or in a TOML file."""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

from keras_transformer.cli.arguments import positive_ints
from keras_transformer.errors import UserError

_TOML_TYPES = {
    str: ((str,), "text in quotes"),
    bool: ((bool,), "true or false"),
    positive_ints: ((list,), "a list of numbers"),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting of a training run.

    Args:
        name: its key in the TOML file; the flag is the same with dashes.
        kind: `str`, `bool`, or a number type of `arguments`.
        text: what it does, in one sentence.
        default: value if nobody sets it; `None` leaves it to the preset or switches it off.
        metavar: name of the value in the help.
        choices: the allowed values, if they are few.
    """

    name: str
    kind: Callable[[str], Any]
    text: str
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        """Adds the flag to a group of a parser; a flag that is not given parses to `None`.

        Args:
            group: where the flag is listed.
        """
        help_text = self.text
        if self.default is not None:
            default = str(self.default).lower() if self.is_switch else self.default
            help_text += f" (default: {default})"
        if self.is_switch:
            group.add_argument(
                self.flag, action=argparse.BooleanOptionalAction, default=None, help=help_text
            )
            return
        group.add_argument(
            self.flag, type=self.kind, choices=self.choices, metavar=self.metavar, help=help_text
        )

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.kind is bool

    def check(self, value: Any, where: str) -> Any:
        """Checks a value from a TOML file as its flag would.

        Args:
            value: what the file says.
            where: the file's name, for the error.

        Returns:
            The value.

        Raises:
            UserError: if it has another type, or is not allowed.
        """
        allowed, expected = _TOML_TYPES.get(self.kind, ((int, float), "a number"))
        # For Python, true is a number.
        if not isinstance(value, allowed) or (isinstance(value, bool) and not self.is_switch):
            raise UserError(f"{where}: {self.name} must be {expected}. Received: {value!r}")
        if self.choices and value not in self.choices:
            raise UserError(
                f"{where}: {self.name} must be one of {', '.join(self.choices)}. "
                f"Received: {value!r}"
            )
        if self.kind in (str, bool):
            return value
        try:
            return self.kind(str(value).strip("[]"))
        except argparse.ArgumentTypeError as error:
            raise UserError(f"{where}: {self.name}: {error}") from error
