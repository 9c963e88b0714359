"""`TrainingRecipe`, and the presets in `presets.toml`: named models with their recipes."""

import dataclasses
from typing import Annotated, Literal

from annotated_types import Predicate

from keras_transformer.checks import check_choice
from keras_transformer.files import read_toml
from keras_transformer.settings.base import (
    Allowed,
    Count,
    NonNegative,
    Positive,
    Rate,
    Settings,
    settings_dataclass,
)


@settings_dataclass
class TrainingRecipe(Settings):
    """The hyper-parameters of training and search that belong to a model.

    The defaults describe the base model of the paper.

    Args:
        label_smoothing: Probability spread over the other tokens, section 5.4.
        r_drop: Weight (alpha) of R-Drop: each step computes its batch twice, with different
            dropout, and brings the two distributions closer together; 5 in the translation
            experiments of its authors.
        optimizer: `adam`, the paper's, or `muon`, with which a model learns more in each step; a
            step takes longer, above all with wide models and small batches.
        peak_learning_rate: Learning rate at the end of the warm-up, from which it falls with the
            square root of the step; None for the paper's, d_model^-0.5 * warmup_steps^-0.5.
        warmup_steps: Number of steps of the linear warm-up, section 5.3.
        beta_1: Decay of Adam's mean of gradients.
        beta_2: Decay of Adam's mean of squared gradients.
        epsilon: Epsilon of Adam.
        clip_norm: Global norm that gradients are clipped to; None for no clipping, as in the paper.
        ema_momentum: Momentum of an exponential moving average of the weights, such as 0.999; the
            average is one more candidate for the finished model, see `select_best`; None for no
            moving average.
        tokens_per_batch: Number of tokens in a batch on each side, padding included, over all GPUs.
        max_steps: Number of training steps.
        max_length: Maximum length of a training sentence in tokens, its end included, on either
            side; longer pairs are left out.
        average_checkpoints: Number of last checkpoints that are averaged at the end, section 6.1;
            see `select_best`.
        beam_size: Number of beams of the search, section 6.1; 1 is greedy.
        length_penalty: Exponent (alpha) of the length penalty, section 6.1; a larger one gives
            longer answers, 0 switches it off.
        length_normalization: Base of the length penalty: `gnmt` for the paper's (5 + length) / 6,
            `length` for the length itself.

    Example:

    >>> recipe = keras_transformer.models.TrainingRecipe(warmup_steps=8_000)
    >>> recipe.beta_1, recipe.beta_2, recipe.epsilon
    (0.9, 0.98, 1e-09)

    Reference: Vaswani et al. (2017), sections 5 and 6.1.
    """

    label_smoothing: Rate = 0.1
    r_drop: NonNegative = 0.0
    optimizer: Literal["adam", "muon"] = "adam"
    peak_learning_rate: Positive | None = None
    warmup_steps: Count = 4000
    beta_1: Rate = 0.9
    beta_2: Rate = 0.98
    epsilon: Positive = 1e-9
    clip_norm: Positive | None = None
    ema_momentum: Rate | None = None
    tokens_per_batch: Count = 25_000
    max_steps: Count = 100_000
    max_length: Count = 256
    average_checkpoints: Count = 5
    beam_size: Count = 4
    length_penalty: NonNegative = 0.6
    length_normalization: Literal["gnmt", "length"] = "gnmt"


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named model with its training hyper-parameters.

    Args:
        name: Name of the preset.
        description: One-line description.
        config: The fields of `TransformerConfig` that differ from the base model.
        recipe: `TrainingRecipe` with its training hyper-parameters.

    Example:

    >>> preset = keras_transformer.models.get_preset("big")
    >>> preset.config["d_model"], preset.recipe.average_checkpoints
    (1024, 20)
    """

    name: str
    description: str
    config: dict
    recipe: TrainingRecipe


def _read_presets():
    presets: dict[str, Preset] = {}
    for name, values in read_toml(__file__, "presets.toml").items():
        config, recipe = values.get("config", {}), TrainingRecipe(**values.get("recipe", {}))
        if "base" in values:
            base = presets[values["base"]]
            config, recipe = {**base.config, **config}, base.recipe
        presets[name] = Preset(name, values["description"], config, recipe)
    return presets


_PRESETS = _read_presets()
_MAIN_PRESETS = sorted(name for name in _PRESETS if not name.startswith("table3"))
PresetName = Annotated[
    str,
    Predicate(_PRESETS.__contains__),
    Allowed(f"one of {', '.join(_MAIN_PRESETS)} or table3_..."),
]


def list_presets() -> list[str]:
    """Returns the names of all presets, beginning with the paper's.

    Example:

    >>> keras_transformer.models.list_presets()[:3]
    ['base', 'big', 'big_en_fr']
    """
    return list(_PRESETS)


def get_preset(name: str) -> Preset:
    """Returns the preset with this name.

    Args:
        name: One of `list_presets()`.

    Example:

    >>> keras_transformer.models.get_preset("big").recipe.max_steps
    300000

    Reference: Vaswani et al. (2017), Table 3 and section 6.3; for `tiny`, Wu et al. (2021), "Good
    for Misconceived Reasons", arXiv 2105.14462; for `tiny_deep` and `small_deep`, Kasai et al.
    (2021), "Deep Encoder, Shallow Decoder", arXiv 2006.10369.
    """
    check_choice("name", name, _PRESETS)
    preset = _PRESETS[name]
    return dataclasses.replace(preset, config=dict(preset.config))  # the caller may change the dict
