"""A declaration is the docstring, the check, the option and the line of a TOML file in one."""

import argparse
import dataclasses
import json

import pytest

from keras_transformer.cli.arguments import add_setting
from keras_transformer.settings.presets import TrainingRecipe
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
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.settings.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Toy(Settings):
    """Toy settings.

    Args:
        size: Number of toys.
        color: Color of toys, which is written without
            a capital.
        weight: Weight in kg; None for any.
        loud: Whether they make noise.
        windows: Window sizes; None for no windows.

    Example: `Toy()`.
    """

    size: int = setting(3, COUNT)
    color: str = setting("red", choice("COLOR", "red", "blue"), name="paint")
    weight: float | None = setting(None, POSITIVE, metavar="KG")
    loud: bool = setting(False)
    windows: tuple[int, ...] | None = setting(None, COUNTS)


def test_the_texts_of_the_command_line_are_those_of_the_docstring():
    texts = {name: (one.text, one.unset) for name, one in declarations(Toy).items()}
    assert texts == {
        "size": ("number of toys", None),
        "color": ("color of toys, which is written without a capital", None),
        "weight": ("weight in kg", "any"),
        "loud": ("whether they make noise", None),
        "windows": ("window sizes", "no windows"),
    }


@pytest.mark.parametrize("settings", [TransformerConfig, TrainingRecipe, TrainingSettings])
def test_every_setting_has_a_text(settings):
    assert all(one.text for one in declarations(settings).values())


def test_the_declarations_have_the_names_of_the_command_line():
    found = declarations(Toy)
    assert list(found) == ["size", "color", "weight", "loud", "windows"]
    assert (found["color"].name, found["color"].flag) == ("paint", "--paint")


NAN, INFINITY = float("nan"), float("inf")
# Wrong values of each setting.
WRONG = {
    Toy: {
        "size": [0, True, 2.0, None], "color": ["green"], "weight": [0, INFINITY, NAN, 10**400],
        "loud": [1], "windows": [(), (1, 0)],
    },
    TransformerConfig: {
        "vocab_size": [0, None, "9"], "target_vocab_size": [-1], "num_encoder_layers": [0],
        "num_decoder_layers": [1.0], "d_model": [True], "intermediate_dim": [0], "num_heads": [0],
        "key_dim": [0], "value_dim": [0], "dropout": [1.0, NAN, "0.1"],
        "attention_dropout": [-0.1], "activation_dropout": [None], "activation": [None],
        "use_bias": [1], "output_bias": [1], "norm_epsilon": [0], "norm": ["Pre"],
        "position": [None], "max_distance": [0], "max_length": [0], "sliding_window": [0],
        "flash_attention": [1],
    },
    TrainingRecipe: {
        "label_smoothing": [1.0, "0.1", None], "beta_1": [True], "beta_2": [-0.1],
        "epsilon": [0, None], "peak_learning_rate": [0, "1e-3"], "clip_norm": [-1],
        "ema_momentum": [1.0], "length_penalty": [-0.1, [1]],
        "length_normalization": ["wu", None], "warmup_steps": [0, 10.0], "beam_size": [0],
        "max_steps": [None],
    },
    TrainingSettings: {
        "tokenizer": ["words"], "bpe_dropout": [1.0], "max_steps": [0], "max_minutes": [-1.0],
        "bleu_every": [-1], "average_windows": [(), (0,)], "gpus": [0], "seed": [-1, 2**32],
        "f1_every": [-1], "f1_trees": [0],
        "freeze": [(), ("head",), ("encoder", "decoder", "embedding"), "encoder"],
    },
}  # fmt: skip


def given(settings):
    return {"vocab_size": 9} if settings is TransformerConfig else {}


@pytest.mark.parametrize(
    "settings, name, value",
    [(one, name, x) for one, rows in WRONG.items() for name, xs in rows.items() for x in xs],
)
def test_what_is_wrong_is_named(settings, name, value):
    with pytest.raises(ValueError) as error:
        settings(**{**given(settings), name: value})
    rule = declarations(settings)[name].rule
    assert str(error.value) == f"`{name}` must be {rule.words}. Received: {name}={value!r}"


@pytest.mark.parametrize(
    "settings",
    [
        Toy(size=4, weight=2, windows=(1, 5)),
        TransformerConfig(
            100, 120, 1, 2, 32, 64, 3, 5, 7, 0.2, 0.3, 0.4, "gelu", "pre", "learned", 50, True, 1e-5
        ),
        TrainingRecipe(label_smoothing=0, peak_learning_rate=1e-3, clip_norm=1.0),
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


def test_what_has_no_default_must_be_in_the_dict():
    with pytest.raises(ValueError, match="must have the setting 'vocab_size'. Received: "):
        TransformerConfig.from_dict({"d_model": 8})


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


def test_the_defaults_are_the_papers_base_model():
    assert TransformerConfig(vocab_size=37_000).to_dict() == {
        "vocab_size": 37_000, "target_vocab_size": None, "num_encoder_layers": 6,
        "num_decoder_layers": 6, "d_model": 512, "intermediate_dim": 2048, "num_heads": 8,
        "key_dim": None, "value_dim": None, "dropout": 0.1, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "activation": "relu", "norm": "post",
        "position": "sinusoidal", "max_length": None, "use_bias": False,
        "norm_epsilon": 1e-6, "max_distance": 16, "sliding_window": None,
        "flash_attention": None, "remat": False, "output_bias": False,
    }  # fmt: skip


@pytest.mark.parametrize("change, message", [
    ({"flash_attention": True, "attention_dropout": 0.1},
     "Received: attention_dropout=0.1, position='sinusoidal'"),
    ({"flash_attention": True, "position": "relative"}, "position='relative'"),
    ({"position": "learned"}, "needs `max_length`. Received: max_length=None"),
    ({"d_model": 9, "num_heads": 3}, "even `d_model`. Received: d_model=9"),
    ({"d_model": 16, "num_heads": 3},
     "`num_heads` must divide `d_model` unless `key_dim` and `value_dim` are given. "
     "Received: num_heads=3, d_model=16"),
    ({"d_model": 16, "num_heads": 3, "key_dim": 4}, "Received: num_heads=3, d_model=16"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_named(change, message):
    with pytest.raises(ValueError) as error:
        TransformerConfig(**{"vocab_size": 9, **change})
    assert message in str(error.value)


def test_properties_of_a_configuration():
    assert TransformerConfig(9).output_vocab_size == 9
    assert TransformerConfig(9, 7).output_vocab_size == 7
    # Heads need not divide the width if their sizes are given.
    config = TransformerConfig(9, d_model=16, num_heads=3, key_dim=4, value_dim=5)
    assert (config.num_heads, config.key_dim, config.value_dim) == (3, 4, 5)
