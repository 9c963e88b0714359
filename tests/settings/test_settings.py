"""A field is the check, the text, the option and the line of a TOML file in one."""

import argparse
import dataclasses
import json

import pytest

from keras_transformer.cli.arguments import value_parser
from keras_transformer.serving import ServerSettings
from keras_transformer.settings.base import (
    Count,
    Counts,
    Positive,
    Rate,
    Settings,
    Texts,
    settings_dataclass,
)
from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.settings.transformer_config import TransformerConfig


@settings_dataclass
class Toy(Settings):
    """Toy settings.

    Args:
        size: Number of toys, which is written without a capital.
        weight: Weight in kg; None for any.
        loud: Whether they make noise.
        windows: Window sizes; None for no windows.
        names: Names of toys.
    """

    size: Count = 3
    weight: Positive | None = None
    loud: bool = False
    windows: Counts | None = None
    names: Texts | None = None


NAN, INFINITY = float("nan"), float("inf")
NUMBER, COUNT = "a number ", "a whole number of at least "
SIZE = "a whole number from 1 to 2147483647"
RATE, ABOVE = NUMBER + "from 0 to below 1", NUMBER + "above 0"
# Of each setting: what is allowed, and values that are not.
WRONG = {
    Toy: {
        "size": (COUNT + "1", [0, True, 2.0, None]), "weight": (ABOVE, [0, INFINITY, NAN]),
        "loud": ("True or False", [1]), "windows": ("whole numbers of at least 1", [(), (1, 0)]),
        "names": ("a list of strings", ["one", [1]]),
    },
    TransformerConfig: {
        "vocab_size": (SIZE, [0, 2**31, "9"]), "dropout": (RATE, [1.0, -0.1]),
        "norm": ("one of 'post', 'pre'", ["Pre"]),
        "num_decoder_layers": ("a whole number from 1 to 1000", [1001]),
    },
    TrainingRecipe: {"length_penalty": (NUMBER + "of at least 0", [-0.1, [1]])},
    TrainingSettings: {
        "model": ("a dict", [3]),
        "freeze": ("one or two of encoder, decoder and embedding", [(), ("head",)]),
    },
    ServerSettings: {"port": ("a port from 0 to 65535", [-1, 65536])},
}  # fmt: skip


def given(settings):
    return {"vocab_size": 9} if settings is TransformerConfig else {}


@pytest.mark.parametrize(
    "settings, name, rule, value",
    [(one, name, rule, x)
     for one, rows in WRONG.items() for name, (rule, xs) in rows.items() for x in xs],
)  # fmt: skip
def test_what_is_wrong_is_named(settings, name, rule, value):
    with pytest.raises(ValueError) as error:
        settings(**{**given(settings), name: value})
    assert str(error.value) == f"`{name}` must be {rule}. Received: {name}={value!r}"


def test_an_unknown_preset_is_answered_with_those_that_exist():
    with pytest.raises(ValueError, match="`preset` must be one of base, .*Received: preset='huge'"):
        TrainingSettings(preset="huge")


@pytest.mark.parametrize(
    "settings",
    [
        Toy(size=4, weight=2, windows=[1, 5]),
        TransformerConfig(100, 120, 1, 2, 32, 64, 3, 5, 7),
        TrainingSettings("tiny", {"dropout": 0.2}, average_windows=(5, 10), max_minutes=2.0),
    ],
)
def test_a_dict_holds_all_and_may_lack_what_has_a_default(settings):
    kind = type(settings)
    values = json.loads(json.dumps(settings.to_dict()))
    assert kind.from_dict(values) == settings
    assert kind.from_dict(given(kind)) == kind(**given(kind))
    with pytest.raises(ValueError, match=f"{kind.__name__} has no such setting.*Received: a, b$"):
        kind.from_dict({**values, "b": 3, "a": 2})
    with pytest.raises(ValueError, match="is saved as a dict. Received: values=3"):
        kind.from_dict(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.seed = 4


@pytest.mark.parametrize("kind, text, rule", [
    (Count, "0", COUNT + "1"), (Count, "1.5", COUNT + "1"), (Positive, "nan", ABOVE),
    (Counts, "1,,2", "whole numbers of at least 1"), (Rate, "1", RATE),
])  # fmt: skip
def test_a_wrong_text_is_refused_with_the_rule(kind, text, rule):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        value_parser(kind)(text)
    assert str(error.value) == f"expected {rule}. Received: {text!r}"


def test_the_defaults_are_the_papers_base_model():
    assert TransformerConfig(vocab_size=37_000).to_dict() == {
        "vocab_size": 37_000, "target_vocab_size": None, "num_encoder_layers": 6,
        "num_decoder_layers": 6, "d_model": 512, "intermediate_dim": 2048, "num_heads": 8,
        "key_dim": None, "value_dim": None, "dropout": 0.1, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "activation": "relu", "norm": "post",
        "position": "sinusoidal", "max_length": None, "use_bias": False,
        "norm_epsilon": 1e-6, "max_distance": 16, "sliding_window": None,
        "flash_attention": None, "remat": False, "output_bias": False,
        "embedding_norm": False,
    }  # fmt: skip


@pytest.mark.parametrize("change, message", [
    ({"flash_attention": True, "position": "relative"}, "position='relative'"),
    ({"position": "learned"}, "needs `max_length`. Received: max_length=None"),
    ({"d_model": 9, "num_heads": 3}, "even `d_model`. Received: d_model=9"),
    ({"d_model": 16, "num_heads": 3, "key_dim": 4}, "Received: num_heads=3, d_model=16"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_named(change, message):
    with pytest.raises(ValueError) as error:
        TransformerConfig(**{"vocab_size": 9, **change})
    assert message in str(error.value)
