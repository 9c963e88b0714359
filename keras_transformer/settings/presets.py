"""The presets in `presets.toml`: named models with their training hyper-parameters."""

import dataclasses

from keras_transformer.files import read_toml
from keras_transformer.settings.training_recipe import TrainingRecipe


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


_PRESETS = {}
for _name, _values in read_toml(__file__, "presets.toml").items():
    _recipe = TrainingRecipe(**_values.pop("recipe", {}))
    _PRESETS[_name] = Preset(_name, **{"config": {}, **_values}, recipe=_recipe)


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

    Raises:
        ValueError: If there is no such preset.

    Example:

    >>> keras_transformer.models.get_preset("big").recipe.max_steps
    300000

    Reference: Vaswani et al. (2017), Table 3 and section 6.3; for `tiny`, Wu et al. (2021), "Good
    for Misconceived Reasons", arXiv 2105.14462; for `tiny_deep` and `small_deep`, Kasai et al.
    (2021), "Deep Encoder, Shallow Decoder", arXiv 2006.10369.
    """
    if name not in _PRESETS:
        raise ValueError(f"`name` must be one of {', '.join(_PRESETS)}. Received: {name=}")
    preset = _PRESETS[name]
    return dataclasses.replace(preset, config=dict(preset.config))  # the caller may change the dict
