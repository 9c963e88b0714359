"""Settings of `train` from a TOML file and the command line, and such a file with comments."""

import argparse
import difflib
import json
import tomllib
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import positive_float, positive_ints
from keras_transformer.cli.recipes import recipe_values
from keras_transformer.cli.setting import Setting
from keras_transformer.cli.train_settings import GROUPS, SETTINGS
from keras_transformer.errors import UserError
from keras_transformer.files import require_file
from keras_transformer.parsing.cli.settings import task_defaults

_EXAMPLES = {str: '"..."', bool: "true", positive_float: "30.0", positive_ints: "[1, 5, 10]"}


def read_config(path: str) -> dict[str, Any]:
    """Reads and checks a TOML file of settings.

    Args:
        path: the file.

    Returns:
        The settings that the file makes, by name.

    Raises:
        UserError: if it is missing, is no TOML, or has an unknown or a wrong setting.
    """
    try:
        with open(require_file(path), "rb") as file:
            tables = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a valid TOML file: {error}") from error
    values = {}
    for table, entries in tables.items():
        if table not in GROUPS or not isinstance(entries, Mapping):
            raise UserError(
                f"{path}: every setting stands in one of the tables "
                f"{', '.join(f'[{name}]' for name in GROUPS)}. Received: {table!r}"
            )
        known = {setting.name: setting for setting in GROUPS[table][1]}
        for name, value in entries.items():
            if name not in known:
                raise UserError(f"{path}: {_unknown(name, table, known)}")
            values[name] = known[name].check(value, path)
    return values


def _unknown(name: str, table: str, known: Mapping[str, Setting]) -> str:
    elsewhere = [other for other, (_, rows) in GROUPS.items() if name in {r.name for r in rows}]
    if elsewhere:
        return f"{name} belongs in [{elsewhere[0]}]. Received: it in [{table}]"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else f"; known: {', '.join(known)}"
    return f"unknown setting in [{table}]{hint}. Received: {name!r}"


def resolve(arguments: argparse.Namespace) -> dict[str, Any]:
    """Puts together defaults, recipe, TOML file and command line, the last one winning.

    Args:
        arguments: parsed arguments.

    Returns:
        The value of every setting, by name.
    """
    values = {name: setting.default for name, setting in SETTINGS.items()}
    given = read_config(arguments.config) if arguments.config else {}
    options = {name: getattr(arguments, name) for name in SETTINGS}
    given |= {name: value for name, value in options.items() if value is not None}
    named = recipe_values(arguments.recipe, given) if arguments.recipe else {}
    task = (named | given).get("task", SETTINGS["task"].default)
    return values | task_defaults(task) | named | given


def render_config(values: Mapping[str, Any], preset_values: Mapping[str, Any]) -> str:
    """Writes a TOML file in which every setting stands with a comment.

    Args:
        values: settings, as `resolve` returns them.
        preset_values: what the preset gives to settings that are `None`.

    Returns:
        The file's text; settings that are not set are commented out.
    """
    lines = [
        "# Settings of `keras-transformer train --config THIS_FILE`.",
        "# A setting behind # is off; its value there is the preset's, or an example. Options on",
        "# the command line win. File names are relative to the folder the command runs in.",
    ]
    for table, (heading, settings) in GROUPS.items():
        lines += ["", f"# {heading[0].upper()}{heading[1:]}.", f"[{table}]"]
        for setting in settings:
            lines += ["", f"# {setting.text[0].upper()}{setting.text[1:]}."]
            if setting.choices:
                lines.append(f"# One of: {', '.join(setting.choices)}.")
            value = values[setting.name]
            if value is not None:
                lines.append(f"{setting.name} = {_toml(value)}")
            elif preset_values.get(setting.name) is not None:
                lines.append(f"# {setting.name} = {_toml(preset_values[setting.name])}")
            else:
                lines.append(f"# {setting.name} = {_example(setting)}")
    return "\n".join(lines) + "\n"


def _example(setting: Setting) -> str:
    return _toml(setting.choices[0]) if setting.choices else str(_EXAMPLES.get(setting.kind, 1))


def _toml(value: Any) -> str:
    # JSON's text, numbers and booleans are TOML's too.
    return json.dumps(value, ensure_ascii=False)
