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
from keras_transformer.settings.training_recipe import TrainingRecipe
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.settings.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Toy(Settings):
    """Toy settings.

    Args:
        size: Number of toys.
        colour: Colour of toys, which is written without
            a capital.
        weight: Weight in kg; None for any.
        loud: Whether they make noise.
        windows: Window sizes; None for no windows.

    Example: `Toy()`.
    """

    size: int = setting(3, COUNT)
    colour: str = setting("red", choice("COLOUR", "red", "blue"), name="paint")
    weight: float | None = setting(None, POSITIVE, metavar="KG")
    loud: bool = setting(False)
    windows: tuple[int, ...] | None = setting(None, COUNTS)


def test_the_texts_of_the_command_line_are_those_of_the_docstring():
    texts = {name: (one.text, one.unset) for name, one in declarations(Toy).items()}
    assert texts == {
        "size": ("number of toys", None),
        "colour": ("colour of toys, which is written without a capital", None),
        "weight": ("weight in kg", "any"),
        "loud": ("whether they make noise", None),
        "windows": ("window sizes", "no windows"),
    }


@pytest.mark.parametrize("settings", [TransformerConfig, TrainingRecipe, TrainingSettings])
def test_every_setting_has_a_text(settings):
    assert all(one.text for one in declarations(settings).values())


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
