"""The presets: named models with the hyper-parameters that train them."""

import dataclasses
from typing import Any

from keras_transformer.settings.training_recipe import TrainingRecipe


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named model with its training hyper-parameters.

    Args:
        name: Name of the preset.
        description: One line for lists.
        config: The fields of `TransformerConfig` that differ from the base model.
        recipe: The hyper-parameters of the paper, or of the source in the description.

    Example:

    >>> preset = keras_transformer.models.get_preset("big")
    >>> preset.config["d_model"], preset.recipe.average_checkpoints
    (1024, 20)
    """

    name: str
    description: str
    config: dict
    recipe: TrainingRecipe


_PAPER_RECIPE = TrainingRecipe()

# The changes to the base model in each row of Table 3.
_TABLE_3 = {
    "table3_a_h1": ("1 head of 512", {"num_heads": 1}),
    "table3_a_h4": ("4 heads of 128", {"num_heads": 4}),
    "table3_a_h16": ("16 heads of 32", {"num_heads": 16}),
    "table3_a_h32": ("32 heads of 16", {"num_heads": 32}),
    "table3_b_dk16": ("keys of 16", {"key_dim": 16}),
    "table3_b_dk32": ("keys of 32", {"key_dim": 32}),
    "table3_c_n2": ("2 layers", {"num_encoder_layers": 2, "num_decoder_layers": 2}),
    "table3_c_n4": ("4 layers", {"num_encoder_layers": 4, "num_decoder_layers": 4}),
    "table3_c_n8": ("8 layers", {"num_encoder_layers": 8, "num_decoder_layers": 8}),
    "table3_c_d256": ("d_model 256, keys and values of 32", {"d_model": 256}),
    "table3_c_d1024": ("d_model 1024, keys and values of 128", {"d_model": 1024}),
    "table3_c_ff1024": ("feed-forward 1024", {"intermediate_dim": 1024}),
    "table3_c_ff4096": ("feed-forward 4096", {"intermediate_dim": 4096}),
    "table3_d_dropout00": ("dropout 0", {"dropout": 0.0}),
    "table3_d_dropout02": ("dropout 0.2", {"dropout": 0.2}),
    "table3_d_smoothing00": ("label smoothing 0", {"label_smoothing": 0.0}),
    "table3_d_smoothing02": ("label smoothing 0.2", {"label_smoothing": 0.2}),
    "table3_e": ("learned positions", {"position": "learned", "max_length": 256}),
}

_BIG = {"d_model": 1024, "intermediate_dim": 4096, "num_heads": 16}
_BIG_RECIPE = dataclasses.replace(_PAPER_RECIPE, max_steps=300_000, average_checkpoints=20)

# Section 6.3: 4 layers, d_model 1024, the rest as base. The paper does not give the dropout and the
# learning rate, which were chosen on a validation set; these are those of tensor2tensor's
# `transformer_parsing_base` and `transformer_parsing_big`: half the learning rate of the formula.
_PARSING = {"num_encoder_layers": 4, "num_decoder_layers": 4, "d_model": 1024}


def _parsing_recipe(warmup_steps: int) -> TrainingRecipe:
    return TrainingRecipe(
        peak_learning_rate=0.5 * (_PARSING["d_model"] * warmup_steps) ** -0.5,
        warmup_steps=warmup_steps,
        max_length=512,
        beam_size=21,
        length_penalty=0.3,
    )


def _table_3_preset(name, change, overrides):
    config = dict(overrides)
    smoothing = config.pop("label_smoothing", _PAPER_RECIPE.label_smoothing)
    # Section 6.2: the table's figures are without averaging of checkpoints.
    recipe = dataclasses.replace(_PAPER_RECIPE, label_smoothing=smoothing, average_checkpoints=1)
    row = name.split("_")[1].upper()
    return Preset(name, f"Table 3 row ({row}): base with {change}", config, recipe)


# With post-norm, the high learning rates that suit small data lead to an encoder whose outputs are
# the same at every position, above all in bfloat16.
def _pre_norm(num_layers: int, **config: Any) -> dict[str, Any]:
    layers = {"num_encoder_layers": num_layers, "num_decoder_layers": num_layers}
    return {**layers, **config, "norm": "pre"}


_PRESETS = [
    Preset("base", "The paper's base model, 6+6 layers, d_model 512", {}, _PAPER_RECIPE),
    Preset("big", "The paper's big model, d_model 1024", {**_BIG, "dropout": 0.3}, _BIG_RECIPE),
    Preset(
        "big_en_fr",
        "The big model for English-French, dropout 0.1",
        {**_BIG, "dropout": 0.1},
        _BIG_RECIPE,
    ),
    *(_table_3_preset(name, *row) for name, row in _TABLE_3.items()),
    Preset(
        "parsing",
        "The paper's parser for 40,000 trees, 4+4 layers, d_model 1024",
        {**_PARSING, "dropout": 0.2, "attention_dropout": 0.2},
        _parsing_recipe(warmup_steps=16_000),
    ),
    Preset(
        "parsing_semi_supervised",
        "The paper's parser for millions of trees, most of them parsed automatically",
        {**_PARSING, "dropout": 0.1, "attention_dropout": 0.1},
        _parsing_recipe(warmup_steps=4000),
    ),
    Preset(
        "tiny",
        "4+4 layers, d_model 128, for corpora of about 10,000 pairs (Wu et al., 2021)",
        _pre_norm(4, d_model=128, intermediate_dim=256, num_heads=4, dropout=0.3),
        TrainingRecipe(
            peak_learning_rate=4e-3,
            warmup_steps=1000,
            tokens_per_batch=4096,
            max_steps=8000,
            average_checkpoints=10,
            beam_size=5,
            length_penalty=1.0,
            length_normalization="length",
        ),
    ),
    Preset(
        "small",
        "3+3 layers, d_model 256, for corpora of about 100,000 pairs",
        _pre_norm(3, d_model=256, intermediate_dim=1024, num_heads=8, dropout=0.2),
        TrainingRecipe(
            peak_learning_rate=2e-3, warmup_steps=1000, tokens_per_batch=4096, max_steps=20_000
        ),
    ),
    Preset(
        "parsing_small",
        "A parser of 2+2 layers, d_model 128, for about 10,000 trees and two CPU cores",
        _pre_norm(2, d_model=128, intermediate_dim=512, num_heads=4),
        TrainingRecipe(
            peak_learning_rate=3e-3,
            warmup_steps=400,
            tokens_per_batch=2048,
            max_steps=20_000,
            max_length=512,
            length_penalty=0.3,
        ),
    ),
]
_PRESETS_BY_NAME = {preset.name: preset for preset in _PRESETS}


def list_presets() -> list[str]:
    """Returns the names of all presets, the paper's first.

    Example:

    >>> keras_transformer.models.list_presets()[:3]
    ['base', 'big', 'big_en_fr']
    """
    return list(_PRESETS_BY_NAME)


def get_preset(name: str) -> Preset:
    """Returns the preset of a name.

    Args:
        name: One of `list_presets()`.

    Raises:
        ValueError: If there is no such preset.

    Example:

    >>> keras_transformer.models.get_preset("big").recipe.max_steps
    300000

    Reference: Vaswani et al. (2017), Table 3 and section 6.3; for `tiny`, Wu et al. (2021), "Good
    for Misconceived Reasons", arXiv 2105.14462.
    """
    if name not in _PRESETS_BY_NAME:
        raise ValueError(f"`name` must be one of {', '.join(_PRESETS_BY_NAME)}. Received: {name=}")
    preset = _PRESETS_BY_NAME[name]
    return dataclasses.replace(preset, config=dict(preset.config))  # the caller may change the dict
