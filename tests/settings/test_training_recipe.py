"""The recipe's defaults are the paper's; bad values are named, also those of a file."""

import json

import pytest

from keras_transformer.models import TrainingRecipe


def test_the_defaults_are_those_of_section_5():
    recipe = TrainingRecipe()
    assert (recipe.beta_1, recipe.beta_2, recipe.epsilon) == (0.9, 0.98, 1e-9)
    assert recipe.warmup_steps == 4000 and recipe.peak_learning_rate is None
    assert recipe.label_smoothing == 0.1 and recipe.tokens_per_batch == 25_000
    assert recipe.max_steps == 100_000 and recipe.average_checkpoints == 5
    assert recipe.beam_size == 4 and recipe.length_penalty == 0.6
    assert recipe.length_normalization == "gnmt"


def test_json_round_trip():
    recipe = TrainingRecipe(label_smoothing=0, peak_learning_rate=1e-3, clip_norm=1.0)
    assert TrainingRecipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    "change",
    [
        {"label_smoothing": 1.0},
        {"label_smoothing": "0.1"},
        {"label_smoothing": None},
        {"beta_2": -0.1},
        {"beta_1": True},
        {"epsilon": 0},
        {"epsilon": None},
        {"peak_learning_rate": 0},
        {"peak_learning_rate": "1e-3"},
        {"clip_norm": -1},
        {"ema_momentum": 1.0},
        {"length_penalty": -0.1},
        {"length_penalty": [1]},
        {"length_normalization": "wu"},
        {"length_normalization": None},
        {"warmup_steps": 0},
        {"warmup_steps": 10.0},
        {"beam_size": 0},
        {"max_steps": None},
    ],
)
def test_what_is_wrong_is_named(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError) as error:
        TrainingRecipe(**change)
    assert str(error.value).endswith(f"Received: {name}={value!r}")


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match="no such setting.*Received: smoothing"):
        TrainingRecipe.from_dict({"smoothing": 0.1})


def test_recipes_without_a_length_normalization_are_read():
    values = TrainingRecipe(beam_size=7).to_dict()
    del values["length_normalization"]
    assert TrainingRecipe.from_dict(values) == TrainingRecipe(beam_size=7)
