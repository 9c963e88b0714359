"""A declaration is the docstring, the check, the option and the line of a TOML file in one."""

import argparse
import dataclasses

import pytest

from keras_transformer.cli.arguments import add_setting
from keras_transformer.settings.setting import (
    COUNT,
    COUNTS,
    NON_NEGATIVE,
    POSITIVE,
    RATE,
    SEED,
    Settings,
    choice,
    declarations,
    setting,
)


@dataclasses.dataclass(frozen=True)
class Toy(Settings):
    """Toy settings.

    Args:
        {settings}
    """

    size: int = setting(3, "number of toys", COUNT)
    colour: str = setting("red", "colour of toys", choice("COLOUR", "red", "blue"), name="paint")
    weight: float | None = setting(None, "weight in kg", POSITIVE, metavar="KG", unset="any")
    loud: bool = setting(False, "whether they make noise")
    windows: tuple[int, ...] | None = setting(None, "window sizes", COUNTS, unset="no windows")


def test_the_docstring_lists_the_settings():
    lines = [line.strip() for line in Toy.__doc__.splitlines()]
    assert "size: Number of toys." in lines and "weight: Weight in kg; None for any." in lines


def test_the_declarations_have_the_names_of_the_command_line():
    found = declarations(Toy)
    assert list(found) == ["size", "colour", "weight", "loud", "windows"]
    assert (found["colour"].name, found["colour"].flag) == ("paint", "--paint")


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0}, {"size": True}, {"size": 2.0}, {"size": None}, {"colour": "green"},
        {"weight": 0}, {"weight": float("inf")}, {"weight": float("nan")}, {"weight": 10**400},
        {"loud": 1}, {"windows": ()}, {"windows": (1, 0)},
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change):
    [(name, value)] = change.items()
    with pytest.raises(ValueError) as error:
        Toy(**change)
    rule = declarations(Toy)[name].rule
    assert str(error.value) == f"`{name}` must be {rule.words}. Received: {name}={value!r}"


def test_dict_round_trip():
    toy = Toy(size=4, weight=2, windows=(1, 5))
    assert toy.to_dict()["windows"] == [1, 5]
    assert Toy.from_dict(toy.to_dict()) == toy
    with pytest.raises(ValueError, match="Toy has no such setting.*Received: price"):
        Toy.from_dict({"price": 3})


def parse(*options):
    parser = argparse.ArgumentParser(exit_on_error=False)
    for one in declarations(Toy).values():
        add_setting(parser, one)
    return vars(parser.parse_args(options))


def test_options_give_the_values_or_nothing():
    nothing = dict.fromkeys(("size", "paint", "weight", "loud", "windows"))
    assert parse() == nothing
    options = "--size 5 --paint blue --weight 2.5 --no-loud --windows 1,5"
    assert parse(*options.split()) == {
        "size": 5, "paint": "blue", "weight": 2.5, "loud": False, "windows": (1, 5)
    }  # fmt: skip


@pytest.mark.parametrize(
    "rule, text",
    [
        (COUNT, "0"), (COUNT, "1.5"), (COUNT, "one"), (COUNTS, "1,,2"), (SEED, "4294967296"),
        (POSITIVE, "nan"), (POSITIVE, "inf"), (NON_NEGATIVE, "-1"), (RATE, "1"),
    ],
)  # fmt: skip
def test_a_wrong_text_is_refused_with_the_rule(rule, text):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        rule(text)
    assert str(error.value) == f"expected {rule.words}. Received: {text!r}"
