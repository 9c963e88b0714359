"""Built-in settings of `train`: the paper's trainings on WMT 2014 and of parsers, by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings that stand together under a name.

    Args:
        name: what `--recipe` takes.
        description: a few words for the help.
        values: settings by name; options on the command line and a TOML file win over them.
    """

    name: str
    description: str
    values: Mapping[str, Any]


# Section 5.1; the validation split is newstest2013.
_DATA = {
    "en-de": {"dataset": "wmt14_translate/de-en", "target_language": "de", "vocab_size": 37_000},
    "en-fr": {"dataset": "wmt14_translate/fr-en", "target_language": "fr", "vocab_size": 32_000},
}
_COMMON = {
    "source_language": "en",
    "train_split": "train",
    "valid_split": "validation",
    "vocabulary_type": "bpe",
    "shared_vocabulary": True,
    "tokens_per_batch": 25_000,
    "beam_size": 4,
    "length_penalty": 0.6,
}
# Section 6.1: checkpoints of every ten minutes, at 0.4 s a step of base and 1.0 s of big.
_BASE = {
    "max_steps": 100_000,
    "average_checkpoints": 5,
    "checkpoint_every": 1_500,
    "evaluate_every": 3_000,
}
_BIG = {
    "max_steps": 300_000,
    "average_checkpoints": 20,
    "checkpoint_every": 600,
    "evaluate_every": 6_000,
}


def _recipe(name: str, description: str, pair: str, preset: str, length: Mapping) -> Recipe:
    return Recipe(name, description, {"preset": preset, **_DATA[pair], **_COMMON, **length})


# Section 6.3. The Wall Street Journal's trees are not free: --trees and --valid-trees name them,
# sections 2 to 21 and section 22.
_PARSING = {
    "task": "parsing",
    "emit_numbers": False,
    "vocabulary_type": "bpe",
    "tokens_per_batch": 25_000,
    "beam_size": 21,
    "length_penalty": 0.3,
}


def _parsing_recipe(name: str, description: str, preset: str, vocab_size: int, length) -> Recipe:
    values = {"preset": preset, "vocab_size": vocab_size, **_PARSING, **length}
    return Recipe(name, description, values)


_RECIPES = (
    _recipe("wmt14-en-de-base", "English-German, the base model", "en-de", "base", _BASE),
    _recipe("wmt14-en-de-big", "English-German, the big model", "en-de", "big", _BIG),
    _recipe("wmt14-en-fr-base", "English-French, the base model", "en-fr", "base", _BASE),
    _recipe("wmt14-en-fr-big", "English-French, the big model", "en-fr", "big_en_fr", _BIG),
    _parsing_recipe("wsj-parsing", "parser of WSJ trees", "parsing", 16_000, _BASE),
    _parsing_recipe(
        "wsj-parsing-semi-supervised",
        "parser of WSJ and parsed trees",
        "parsing_semi_supervised",
        32_000,
        _BASE,
    ),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}

# With text of one's own these make no sense.
_OF_THE_DATASET = ("dataset", "source_language", "target_language", "train_split", "valid_split")
_OWN_TEXT = ("source", "target", "valid_source", "valid_target", "tsv", "valid_tsv", "prepared")


def recipe_values(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a recipe that hold next to those given otherwise.

    Args:
        name: a key of `RECIPES`.
        given: settings of the TOML file and the command line. If they name text files, the
            recipe's data set is left out.

    Returns:
        Settings by name.

    Example:

    >>> recipe_values("wmt14-en-de-big", {})["vocab_size"]
    37000
    """
    values = RECIPES[name].values
    if any(given.get(setting) for setting in _OWN_TEXT):
        values = {key: value for key, value in values.items() if key not in _OF_THE_DATASET}
    return {key: value for key, value in values.items() if key not in given}
